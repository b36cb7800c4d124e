"""Ingests Kafka topics into Delta Lake tables as Dagster assets: exactly once, in bounded batches.

The stub beside this file names all public names. They are imported on first use, so that the command line starts fast
and a code location does not load Spark.
"""

from __future__ import annotations

from typing import Any

from dagster_kafka_flip.settings.lazy_names import lazy_names

_names, _get = lazy_names(__name__)
__all__ = _names  # noqa: PLE0605 - the stub has them  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("dagster-kafka-flip")
    return _get(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
