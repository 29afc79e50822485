"""Results turned into text. Never prints."""
