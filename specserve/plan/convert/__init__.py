"""Old command lines, scripts and calls to a profile that works today. Runs nothing of what it reads."""
