"""Facts about models, tokenizers, accelerators and locks: read, never judged."""
