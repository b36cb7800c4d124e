"""FramedFormat: base class of formats whose records may have a schema registry's frame before their content."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.formats.frames import (
    SchemaIdIn,
    frame,
    framed,
    frames_of,
    has_frame,
    header_name,
    schema_id_text,
)
from dagster_kafka_flip.registry.registered_schema import TOPIC, RegisteredSchema, check_subject
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import Column
    from typing_extensions import Self


class FramedFormat(Format):
    """A format whose records may name their schema in a registry, and whose reader schema may be there.

    Attributes:
        declared: The reader schema; None for the subject's latest.
        registry: The registry, or in Dagster the key of a SchemaRegistryResource. None if the bytes name no schema.
        subject: The subject whose latest schema is the reader schema, if none is given, perhaps with a context
            (`:.eu:orders-value`). `{topic}` in it is the source's topic. Default: `{topic}-value` or `{topic}-key`.
        schema_id_in: Where records name their schema: `payload` (default; before the content) or `headers` (Confluent's
            HeaderSchemaIdSerializer; or else before the content).
    """

    kind: ClassVar[str]
    """The registry's name for the kind of schema."""

    kind_name: ClassVar[str]
    """Its name in messages."""

    reader_option: ClassVar[str] = "schema"
    """Name of the option with the reader schema."""

    goes_on_in_header: ClassVar[bool] = False
    """Whether more than the frame may be in a record's header."""

    declared: Any
    registry: SchemaRegistry | str | None = None
    subject: str | None = None
    schema_id_in: SchemaIdIn = "payload"
    _pinned: RegisteredSchema | None = PrivateAttr(default=None)
    _is_bound: bool = PrivateAttr(default=False)
    _is_key: bool = PrivateAttr(default=False)
    _may_lack: bool = PrivateAttr(default=False)

    @field_validator("registry", mode="before")
    @classmethod
    def _check_registry(cls, registry: Any) -> Any:
        if isinstance(registry, str) and "://" in registry:
            raise ConfigurationError(
                f"a {cls.__name__}'s registry is a SchemaRegistry or the key of a SchemaRegistryResource; for an "
                "address, write SchemaRegistry(url=...)"
            )
        return registry

    @field_validator("subject")
    @classmethod
    def _check_subject(cls, subject: str | None) -> str | None:
        return check_subject(cls.__name__, subject)

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        name = type(self).__name__
        if self.registry is None and not self.has_reader:
            msg = f"{name} needs a {self.reader_option}, or a registry: {name}(registry=SchemaRegistry(url=...))"
            raise ConfigurationError(msg)
        if self.registry is None and (self.subject is not None or self.schema_id_in != "payload"):
            raise ConfigurationError(f"{name}: subject and schema_id_in need a registry")
        if self.subject is not None and self.has_reader:
            raise ConfigurationError(f"{name}: subject and {self.reader_option} both set the reader schema; remove one")
        return self

    @property
    def has_reader(self) -> bool:
        """Whether the reader schema is known."""
        return self.declared is not None

    def read_with(self, registered: RegisteredSchema) -> Self:
        """The format with a registered schema as its reader schema."""
        what = f"schema {registered.schema_id}, the latest of the subject {registered.subject!r}"
        if registered.kind != self.kind:
            msg = f"{what}, has the type {registered.kind}; {type(self).__name__} reads only {self.kind_name}"
            raise ConfigurationError(msg)
        read = self.model_copy(update=self.reader_of(registered, what))
        read._pinned = registered  # noqa: SLF001
        return read

    @abstractmethod
    def reader_of(self, registered: RegisteredSchema, what: str) -> dict[str, Any]:
        """The settings with which the format reads records as a registered schema of its kind.

        Args:
            registered: The schema.
            what: Name of the schema in an error.

        Raises:
            ConfigurationError: The schema is malformed, or its records can't be turned into columns.
        """

    @property
    def registry_key(self) -> str | None:
        """The key of the Dagster resource with the registry, if it is one."""
        return self.registry if isinstance(self.registry, str) else None

    def not_bound(self) -> ConfigurationError:
        """The error of a format that is used without a run."""
        return ConfigurationError(
            f"this {type(self).__name__} has no schemas from its registry yet: it was used outside a run"
        )

    @property
    def pinned(self) -> RegisteredSchema | None:
        """The registered schema that a run reads records as; None if the schema was given."""
        return self._pinned

    def with_registry(self, registry: SchemaRegistry) -> Self:
        """The format with the registry in place of a resource's key."""
        return self.model_copy(update={"registry": registry})

    def bound(self, topics: Collection[str] | None, *, is_key: bool, may_lack: bool = False) -> Self:
        """The format for a run, with its reader schema.

        Args:
            topics: The source's topics; None if only the brokers know them.
            is_key: Whether it decodes keys.
            may_lack: Whether a record is only rejected if the registry lacks its schema.

        Raises:
            ConfigurationError: The registry is the key of a resource; or the reader schema is unknown or unusable.
            SchemaRegistryError: The registry does not answer, or has no such subject.
        """
        if self.is_bound or self.registry is None:
            return self
        if isinstance(self.registry, str):
            raise ConfigurationError(
                f"registry={self.registry!r} is the key of a SchemaRegistryResource, which only Dagster has; outside "
                f"of it, write {type(self).__name__}(registry=SchemaRegistry(url=...))"
            )
        bound = self.model_copy()
        bound._is_bound = True  # noqa: SLF001
        bound._is_key = is_key  # noqa: SLF001
        bound._may_lack = may_lack  # noqa: SLF001
        return bound.asked(self.registry, topics)

    def asked(self, registry: SchemaRegistry, topics: Collection[str] | None) -> Self:
        """The format with what a run needs of its registry: the reader schema, if none was given."""
        if self.has_reader:
            return self
        return self.read_with(self.latest(registry, self.reader_subject(topics, is_key=self._is_key)))

    def latest(self, registry: SchemaRegistry, subject: str) -> RegisteredSchema:
        """Asks for the latest schema of a subject."""
        with registry.schemas() as schemas:
            return schemas.latest(subject)

    def renew(self) -> None:
        """Reads records as the subject's latest schema from now on, in place; nothing if the schema was given.

        A producer registers a schema before it writes with it. So once it is fixed where a plan stops, no record before
        that has a newer schema than the latest.

        Raises:
            ConfigurationError: The latest is of another kind, or its records can't be turned into columns.
            SchemaRegistryError: The registry does not answer.
        """
        pinned = self._pinned
        if pinned is None or pinned.subject is None or not isinstance(self.registry, SchemaRegistry):
            return
        latest = self.latest(self.registry, pinned.subject)
        if (latest.schema_id, latest.version) != (pinned.schema_id, pinned.version):
            renewed = self.read_with(latest)
            for name in type(self).model_fields:
                # In place, because all parts of a run share it, and it belongs to no other run: see `bound`.
                object.__setattr__(self, name, getattr(renewed, name))
            self._pinned = renewed.pinned

    @property
    def is_bound(self) -> bool:
        """Whether it is the format of a run: see `bound`."""
        return self._is_bound

    @property
    def is_framed(self) -> bool:
        """Whether a schema's id precedes the content."""
        return self.registry is not None or self.is_bound

    def reader_subject(self, topics: Collection[str] | None, *, is_key: bool) -> str:
        """The subject whose latest schema is the reader schema."""
        side = "key" if is_key else "value"
        subject = self.subject or f"{TOPIC}-{side}"
        if TOPIC not in subject:
            return subject
        if topics is None or len(topics) != 1:
            which = "the topics are not known here" if topics is None else f"there are {len(topics)} topics"
            raise ConfigurationError(
                f"{side}_format: {which}, so the reader schema can't be the latest of {subject!r}",
                "Name one subject without {topic}, or give the schema",
            )
        return subject.replace(TOPIC, next(iter(topics)))

    @property
    def changes_frame(self) -> bool:
        """Whether `framed` gives another payload than the record's, such as with a frame from a header."""
        return self.schema_id_in == "headers" and self.is_bound

    def framed(self, data: Column, headers: Column) -> Column:
        """Key or value after its frame."""
        if not self.changes_frame:
            return data
        return framed(data, headers, header_name(is_key=self._is_key), may_go_on=self.goes_on_in_header)

    @property
    def known_schemas(self) -> Mapping[str, RegisteredSchema | None]:
        """The schemas that are known, by their frames; None for a frame that the registry does not know."""
        return {} if self._pinned is None else dict.fromkeys(frames_of(self._pinned), self._pinned)

    def schema_text(self, data: Column) -> Column | None:
        """The text of the schema that a framed payload names, null if the registry lacks it; None if none is known."""
        from pyspark.sql import functions as f

        found = None
        for digits, schema in self.known_schemas.items():
            if schema is not None:
                is_so = has_frame(data, digits)
                found = f.when(is_so, schema.text) if found is None else found.when(is_so, schema.text)
        return found

    def schema_id(self, data: Column) -> Column | None:
        """The number or the guid of the schema that a framed payload names, as text; None if payloads name none."""
        return schema_id_text(self.frame(data)) if self.is_framed else None

    def frame(self, data: Column) -> Column:
        """The frame of a framed payload; null if it has none."""
        return frame(data)
