"""TableVersion: a table's version as recorded in other tables' commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class TableVersion:
    """A version of a table, identified by the table's id.

    Attributes:
        table: The table, as text of its DeltaTarget.
        table_id: Delta's id of the table, which stays when it is moved.
        version: The version.
    """

    table: str
    table_id: str
    version: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableVersion:
        """Reads the fields in a commit's document."""
        return cls(document["table"], document["table_id"], document["version"])
