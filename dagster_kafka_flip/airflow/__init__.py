"""Airflow's side: operators, a sensor and its trigger, and the assets of topics and tables. Without Dagster.

Importing this package imports neither Airflow nor pyspark: the stub beside this file names all public names, which are
imported on first use.
"""

from __future__ import annotations

from dagster_kafka_flip.settings.lazy_names import lazy_names

_names, __getattr__ = lazy_names(__name__)
__all__ = _names  # noqa: PLE0605 - the stub has them  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
