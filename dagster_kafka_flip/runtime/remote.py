"""Whether a Spark Connect server does the work, and what to do when it has ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import error_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_remote(of: SparkSession | DataFrame) -> bool:
    """Whether a session or a DataFrame is Spark Connect's.

    Spark Connect has separate classes, in a module that needs packages which may be missing.
    """
    return "connect" in type(of).__module__


# Its client gives up; its address is in the cause. A server that ends in the middle of an answer resets the stream,
# which clients do not try again. A started server does not know the sessions of the one before.
_NO_ANSWER = re.compile(r"RETRIES_EXCEEDED|StatusCode\.UNAVAILABLE|RST_STREAM|failed to connect to all addresses")
_OTHER_SERVER = re.compile(r"INVALID_HANDLE\.SESSION_(?:NOT_FOUND|CHANGED|CLOSED)|NO_ACTIVE_SESSION")
# A server that is told to end first stops Spark, and still answers until its JVM has ended.
_SHUTTING_DOWN = re.compile(r"stopped SparkContext|SparkContext was shut down|No active or default Spark session found")
# An error of gRPC that pyspark did not translate begins with the name of its Python class.
_OF_GRPC = re.compile(r'<_\w+ of RPC .*?details = "(?P<details>[^\n]*)"', re.DOTALL)
_HERE = re.compile(r"(?:ipv[46]:|sc://)(?:127\.|localhost\b|\[::1\]|%5B::1%5D)")


def without_grpc(text: str) -> str:
    """The text of an error; of one of gRPC only what it says."""
    of_grpc = _OF_GRPC.match(text)
    return text if of_grpc is None else of_grpc["details"]


def server_advice(error: BaseException, address: str = "") -> str | None:
    """What to do about an error that means that the Connect server has ended; None for other errors.

    Args:
        error: Spark's error.
        address: The server's, where it is known.
    """
    text = " ".join(error_text(each) for each in (error, error.__cause__) if each is not None)
    if _OTHER_SERVER.search(text):
        return (
            "The Spark Connect server was started again meanwhile, or has closed this session: run again in a new "
            "process. If it ends often, look at its log, and give it more memory"
        )
    # Said by Spark itself, it means a session of this process.
    if "connect" in type(error).__module__ and _SHUTTING_DOWN.search(text):
        return (
            "The Spark Connect server is shutting down: when it has ended, start it again (dagster-kafka-flip spark "
            "start --daemon, if it is that one), and run again"
        )
    if not _NO_ANSWER.search(text):
        return None
    own = " (dagster-kafka-flip spark start --daemon, if it is that one)" if _HERE.search(f"{text} {address}") else ""
    return (
        "The Spark Connect server does not answer: check its address and the network to it, and whether it still runs. "
        f"If it has ended, look at its log (it may need more memory), start it again{own}, and run again"
    )
