"""Running a plan: the child process, its phases, its health, its end."""
