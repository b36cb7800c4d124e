"""`f` is `pyspark.sql.functions`, imported by the first use: loading a code location must not import pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import functions as f
else:

    class _Functions:
        def __getattr__(self, name: str) -> object:
            from pyspark.sql import functions

            return getattr(functions, name)

    f = _Functions()

__all__ = ["f"]
