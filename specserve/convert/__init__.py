"""Old and foreign launches to profiles: command lines, shell scripts, compose files, Python, SGLang. Runs nothing."""
