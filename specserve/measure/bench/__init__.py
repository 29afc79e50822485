"""Does speculation pay here: variants, blocks of requests, figures with intervals, verdicts."""
