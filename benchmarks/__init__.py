"""Measurements of planning and of reading, on a broker of their own: docs/benchmarks.md says how to run them."""
