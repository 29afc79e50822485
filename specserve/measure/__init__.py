"""Traffic against live servers and what follows from it: watch, verify, bench. Launches through `serve`, prints nothing."""
