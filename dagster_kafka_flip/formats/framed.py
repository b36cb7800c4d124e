"""FramedFormat: base class of formats whose records may have a schema registry's frame before their content."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr, field_validator, model_validator

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
from dagster_kafka_flip.formats.schema_book import SchemaBook
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

    needs_writers: ClassVar[bool] = True
    """Whether records are decoded with the schemas that they were written with, so that a run has to know these."""

    declared: Any = Field(default=None, alias="schema", kw_only=False)
    registry: SchemaRegistry | str | None = None
    subject: str | None = None
    schema_id_in: SchemaIdIn = "payload"
    _pinned: RegisteredSchema | None = PrivateAttr(default=None)
    _book: SchemaBook | None = PrivateAttr(default=None)
    _is_key: bool = PrivateAttr(default=False)

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
        schemas = self.registry.schemas() if self.needs_writers or not self.has_reader else None
        bound = self.with_book(SchemaBook(schemas, may_lack=may_lack), is_key=is_key)
        if self.has_reader:
            return bound
        return bound.read_with(bound.latest(self.reader_subject(topics, is_key=is_key)))

    def with_book(self, book: SchemaBook, *, is_key: bool) -> Self:
        """The format with the schemas of a run."""
        made = self.model_copy()
        made._book, made._is_key = book, is_key  # noqa: SLF001
        return made

    def description(self) -> dict[str, Any]:
        """All that decides how records are decoded; without the registry, which may hold secrets."""
        given = super().description().items()
        own = {name: value for name, value in given if name == "declared" or name not in FramedFormat.model_fields}
        if not self.is_framed:
            return own
        frame: dict[str, Any] = {"schema_id_in": self.schema_id_in, "is_key": self._is_key}
        if self.needs_writers:
            frame["writers"] = None if self._book is None else self._book.description()
        return {**own, "frame": frame}

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Self | None:
        """The format of a `description`, which needs no registry; None if that was made before a run."""
        frame = description.get("frame")
        if description.get("declared") is None or (frame is not None and frame.get("writers", ()) is None):
            return None
        made = super().described(description)
        return made if made is None or frame is None else made.as_framed(**frame)

    def as_framed(self, schema_id_in: SchemaIdIn, *, is_key: bool, writers: Mapping[str, Any] = {}) -> Self:
        """The format for keys or values with a schema's id, which needs no registry."""
        made = self.model_copy(update={"schema_id_in": schema_id_in})
        return made.with_book(SchemaBook.described(writers), is_key=is_key)

    @property
    def book(self) -> SchemaBook:
        """The schemas of the run."""
        if self._book is None:
            raise self.not_bound()
        return self._book

    def latest(self, subject: str) -> RegisteredSchema:
        """Asks for the latest schema of a subject.

        The book learns how records name it, because most of them do: a batch that does is read once.
        """
        found = self.book.latest(subject)
        frames = frames_of(found)
        if self.needs_writers:
            frames = frames[-1:] if self.schema_id_in == "headers" else frames[:1]
        self.book.add(frames, found)
        return found

    def renew(self) -> None:
        """Reads records as the subject's latest schema from now on, in place; nothing if the schema was given.

        A producer registers a schema before it writes with it. So once it is fixed where a plan stops, no record before
        that has a newer schema than the latest.

        Raises:
            ConfigurationError: The latest is of another kind, or its records can't be turned into columns.
            SchemaRegistryError: The registry does not answer.
        """
        pinned = self._pinned
        if pinned is None or pinned.subject is None:
            return
        latest = self.latest(pinned.subject)
        if (latest.schema_id, latest.version) != (pinned.schema_id, pinned.version):
            renewed = self.read_with(latest)
            for name in type(self).model_fields:
                # In place, because all parts of a run share it, and it belongs to no other run: see `bound`.
                object.__setattr__(self, name, getattr(renewed, name))
            self._pinned = renewed.pinned

    @property
    def is_bound(self) -> bool:
        """Whether it is the format of a run: see `bound`."""
        return self._book is not None

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

    def written_with(self, data: Column) -> tuple[Column | None, Column | None]:
        """Text and id of the schema that a framed payload names; the text is null if the run does not know it."""
        from pyspark.sql import functions as f

        if not self.is_framed:
            return None, None
        known = {} if self._book is None else self._book.known
        texts = [f.when(has_frame(data, digits), each.text) for digits, each in known.items() if each is not None]
        return f.coalesce(*texts) if texts else None, schema_id_text(self.frame(data))

    def frame(self, data: Column) -> Column:
        """The frame of a framed payload; null if it has none."""
        return frame(data)
