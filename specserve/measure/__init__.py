"""Traffic against live servers and what follows from it: watch, verify, bench. Prints nothing."""
