"""Which draft for a target: those that are published, judged and estimated."""
