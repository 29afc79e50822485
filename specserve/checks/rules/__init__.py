"""The rules, one file for each family, and the catalogue of all."""
