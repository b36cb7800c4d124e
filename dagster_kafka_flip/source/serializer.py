"""Versioned serializers: every later version reads what an earlier one wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dagster_kafka_flip.errors import DocumentVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class SimpleVersionedSerializer(Protocol[T]):
    """Flink's interface of the same name, with JSON instead of bytes, so that documents are human-readable."""

    @property
    def version(self) -> int:
        """The version that `serialize` writes."""
        ...

    @property
    def what(self) -> str:
        """Name of the serialized object, for messages."""
        ...

    def serialize(self, value: T) -> dict[str, Any]:
        """The value as a JSON object, without its version."""
        ...

    def deserialize(self, version: int, document: Mapping[str, Any]) -> T:
        """Reads a document of the given version, which is not newer than this one."""
        ...


def to_document(serializer: SimpleVersionedSerializer[T], value: T) -> dict[str, Any]:
    """Serializes the value to a JSON object with its version."""
    return {"version": serializer.version, **serializer.serialize(value)}


def from_document(serializer: SimpleVersionedSerializer[T], document: Mapping[str, Any]) -> T:
    """Deserializes the result of `to_document`."""
    version: int = document["version"]
    if version > serializer.version:
        msg = (
            f"{serializer.what} has format version {version}, but this version of dagster-kafka-flip reads versions "
            f"up to {serializer.version}: upgrade dagster-kafka-flip to at least the version that wrote it"
        )
        raise DocumentVersionError(msg)
    return serializer.deserialize(version, document)
