"""Whether speculation works on a running server: figures of a window, a verdict, what to do."""
