"""What runs tell monitoring: facts in log lines, and OpenTelemetry metrics."""
