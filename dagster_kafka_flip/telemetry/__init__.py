"""For monitoring: fields in log lines, and OpenTelemetry metrics."""
