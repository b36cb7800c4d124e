"""Reads splits as a lazy DataFrame through Spark's Kafka batch source."""
