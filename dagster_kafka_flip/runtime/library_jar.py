"""The Java library that the package carries, and its version."""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path

JAR = Path(__file__).with_name("dagster-kafka-flip.jar")
"""The library."""

VERSION_ENTRY = "io/dagsterkafkaflip/version.txt"
"""Its entry with the version, a digest of its source."""


@cache
def library_version() -> str:
    """The library's version."""
    with zipfile.ZipFile(JAR) as jar:
        return jar.read(VERSION_ENTRY).decode()
