"""What is to be run: the only place that knows vLLM's flags."""
