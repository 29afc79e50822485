"""Memory of a launch, by formula: pure in facts, arguments and version constants."""
