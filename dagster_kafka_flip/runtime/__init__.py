"""What a run needs on its machine: Java, jars, a Spark session, and the logs and signals of both."""
