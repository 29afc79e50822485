"""Tokenizers: what each id means to target and draft, and how often they differ. Knows no rule and no profile."""
