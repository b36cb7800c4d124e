"""How to read: splits become a lazy DataFrame through Spark's Kafka batch source."""
