"""Public names of a package, each once: in the stub beside its `__init__.py`."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any]]:
    """The names of a package's stub, and the `__getattr__` that imports each on first use."""
    stub = (pkgutil.get_data(package, "__init__.pyi") or b"").decode()
    homes = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", stub, re.MULTILINE)}

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(homes), get
