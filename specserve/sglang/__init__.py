"""What specserve knows of SGLang: the arguments of one version, and what they are in a profile."""
