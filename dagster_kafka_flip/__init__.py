"""Ingests Kafka topics into Delta Lake tables as Dagster assets: exactly once, in bounded batches.

The stub beside this file names all public names. They are imported on first use, so that the command line starts fast
and a code location does not load Spark.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

_STUB = (pkgutil.get_data(__name__, "__init__.pyi") or b"").decode()
_HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - the stub has them  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("dagster-kafka-flip")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
