"""The one view of vLLM: what holds in which version, as data and as functions on plain values."""
