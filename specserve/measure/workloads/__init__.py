"""What a benchmark sends: sets of prompts that ship with specserve, a user's own, and the traffic of a log."""
