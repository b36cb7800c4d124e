"""Versioned serializers: what one version wrote, every later one reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dagster_kafka_flip.errors import DocumentVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class SimpleVersionedSerializer(Protocol[T]):
    """Flink's interface of the same name, with JSON for bytes: documents are read by people too."""

    @property
    def version(self) -> int:
        """The version that `serialize` writes."""
        ...

    @property
    def what(self) -> str:
        """What is serialized, for messages."""
        ...

    def serialize(self, value: T) -> dict[str, Any]:
        """The value as a JSON object, without its version."""
        ...

    def deserialize(self, version: int, document: Mapping[str, Any]) -> T:
        """Reads what `serialize` of that version, which is not newer than this one, wrote."""
        ...


def to_document(serializer: SimpleVersionedSerializer[T], value: T) -> dict[str, Any]:
    """The value as a JSON object that names its version."""
    return {"version": serializer.version, **serializer.serialize(value)}


def from_document(serializer: SimpleVersionedSerializer[T], document: Mapping[str, Any]) -> T:
    """Reads what `to_document` wrote.

    Raises:
        DocumentVersionError: A newer version of this package wrote it.
    """
    version: int = document["version"]
    if version > serializer.version:
        msg = (
            f"{serializer.what} was written in version {version} of its format, and this installation of "
            f"dagster-kafka-flip reads versions up to {serializer.version}: upgrade it to at least the one that wrote "
            "it"
        )
        raise DocumentVersionError(msg)
    return serializer.deserialize(version, document)
