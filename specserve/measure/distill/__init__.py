"""A draft trained on the traffic that it is to serve, and proof that it pays."""
