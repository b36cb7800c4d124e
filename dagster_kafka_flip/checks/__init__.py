"""Asset checks that run on their own: on a table, its topics and Dagster's record."""
