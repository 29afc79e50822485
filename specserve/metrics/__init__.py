"""What vLLM reports about itself: Prometheus text to numbers. Pure."""
