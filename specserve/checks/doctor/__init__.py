"""What this host is to a launch, one line a fact. Judges no profile: `check` does that."""
