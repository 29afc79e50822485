"""What specserve knows of SGLang: the arguments of one version, and what says the same in a profile."""
