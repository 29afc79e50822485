"""config.json as a typed shape: layers, heads, experts, windows, states. Knows no engine setting."""
