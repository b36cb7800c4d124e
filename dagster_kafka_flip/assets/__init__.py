"""Dagster assets that ingest Kafka topics, and their metadata."""
