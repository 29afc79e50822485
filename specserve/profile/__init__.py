"""What the user wrote: a YAML file becomes a typed Profile whose values know their place."""
