"""Rules over profiles, and the machine that runs them."""
