"""TableVersion: one version of one table, as commits of other tables name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class TableVersion:
    """A version of a table that is told from any other table of that name.

    Attributes:
        table: The table, as its DeltaTarget printed it then.
        table_id: The id that Delta gave it, which stays when it is moved.
        version: The version.
    """

    table: str
    table_id: str
    version: int

    def to_json(self) -> dict[str, Any]:
        """As it is kept in a commit's document."""
        return {"table": self.table, "table_id": self.table_id, "version": self.version}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableVersion:
        """Reads what `to_json` wrote."""
        return cls(document["table"], document["table_id"], document["version"])
