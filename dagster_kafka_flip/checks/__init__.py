"""Asset checks that look at a table, its topics and Dagster's record whenever they are asked to."""
