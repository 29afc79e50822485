"""Old and foreign launches to profiles: commands, scripts, containers, Python. Runs nothing."""
