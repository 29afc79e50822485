"""What a benchmark sends: prompts that ship, a user's own, and the traffic of a log."""
