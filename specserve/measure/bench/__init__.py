"""Does speculation pay here: arms, blocks of requests, figures with intervals, verdicts."""
