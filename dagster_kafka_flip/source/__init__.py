"""What to read: sources, offsets, splits and the enumerator. Kafka only; imports neither Spark nor Dagster."""
