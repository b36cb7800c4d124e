"""Dagster assets that ingest Kafka topics, and their metadata."""

import contextlib
from importlib.metadata import PackageNotFoundError, version

from dagster_kafka_flip.assets.dagster_internals import DagsterLibraryRegistry

# Dagster lists the libraries of a code location. This one has versions of its own.
with contextlib.suppress(PackageNotFoundError):
    DagsterLibraryRegistry.register("dagster-kafka-flip", version("dagster-kafka-flip"), is_dagster_package=False)
