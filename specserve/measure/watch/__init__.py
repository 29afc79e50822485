"""Whether speculation still works on a running server: its metrics over a window, a verdict, one advice."""
