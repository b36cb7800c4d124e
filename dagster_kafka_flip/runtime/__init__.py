"""The run's environment: Java, jars, Spark sessions, logs and signals."""
