"""Delta tables, and the position in their commits."""
