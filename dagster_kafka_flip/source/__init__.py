"""Sources, offsets, splits and the split enumerator. Uses Kafka only; imports neither Spark nor Dagster."""
