"""What another vLLM makes of the same profile: before anything runs, and measured."""
