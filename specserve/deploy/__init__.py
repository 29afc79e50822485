"""A launch plan as files for production: one module per target, each a pure function. Starts nothing."""
