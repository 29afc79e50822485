"""vLLM's sources, read with `ast` and never imported: what a version of it accepts and can load."""
