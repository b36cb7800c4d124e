"""Dagster assets that run an ingestion, and what they record."""
