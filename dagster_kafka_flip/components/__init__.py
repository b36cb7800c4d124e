"""Dagster components: assets, checks and resources in YAML."""
