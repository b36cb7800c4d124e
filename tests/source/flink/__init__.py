"""The cases of Flink's tests of its KafkaSource, on a real broker; README.md here says which is which."""
