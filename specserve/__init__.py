"""specserve: one YAML profile to a vLLM server with speculative decoding."""

__version__ = "0.1.0"
