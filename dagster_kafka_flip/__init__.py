"""Lands Kafka topics in Delta Lake tables, exactly once, in bounded batches."""
