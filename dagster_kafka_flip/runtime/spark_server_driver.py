"""What spark-submit runs as the server's program: the session whose plugin is Spark Connect.

Spark's own class for a server isolates the artifacts of its sessions, each with a class loader of its own. Spark keeps
generated code for each class loader, so that every run would compile all of its code again, and Java would begin again
to optimize it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PLUGINS = "spark.plugins"
_CONNECT = "org.apache.spark.sql.connect.SparkConnectPlugin"


def run(ready: Path) -> None:
    """Creates the session, and waits until the JVM ends. The file is created when clients can connect."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # Without the JVM, a SparkConf does not have what the command and spark-defaults.conf say.
    SparkContext._ensure_initialized()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    plugins = dict.fromkeys([*filter(None, (SparkConf().get(_PLUGINS) or "").split(",")), _CONNECT])
    SparkSession.builder.config(_PLUGINS, ",".join(plugins)).getOrCreate()
    ready.touch(mode=0o600)
    # In the place of Python, which would hold 130 MB. It ends when its standard input does, as the JVM has the other
    # end of it.
    os.execvp("cat", ["cat"])  # noqa: S606


if __name__ == "__main__":
    run(Path(sys.argv[1]))
