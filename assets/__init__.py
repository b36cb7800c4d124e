"""The example: the flights of 2013 out of New York, from a Kafka topic to three Delta tables."""
