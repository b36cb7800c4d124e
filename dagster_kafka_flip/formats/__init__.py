"""Formats: decode bytes to columns."""
