"""One run, from the position to the commit: streams, windows, several tables, dead letters. No Dagster."""
