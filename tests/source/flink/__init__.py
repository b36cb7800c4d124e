"""The cases of Flink's tests of its KafkaSource, on a real broker; docs/flink-parity.md says which is which."""
