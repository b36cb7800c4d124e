"""`make upgrade` knows whether the jars of a version can be had."""

from __future__ import annotations

from importlib.metadata import version

from scripts.upgrade import without_jars


def test_the_installed_versions_have_their_jars() -> None:
    """And so they may be pinned."""
    assert without_jars(version("pyspark"), version("delta-spark")) == set()
