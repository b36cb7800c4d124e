"""Settings and arguments: base classes, checks, and what hides secrets."""
