"""Small requests for what speculation breaks in practice, one module for each."""
