from pyspark.sql.functions import *  # noqa: F403 - the same names
