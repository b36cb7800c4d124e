"""Publishes the changes of a Delta table to Kafka, exactly once. Independent of Dagster."""
