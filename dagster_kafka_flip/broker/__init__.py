"""A Kafka broker on this machine, for development and tests."""
