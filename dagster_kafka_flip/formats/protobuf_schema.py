"""ProtobufSchema: a descriptor set, and the content of its last file."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.protobuf_compiler import check_packages, with_known_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.descriptor import Descriptor

# What FileDescriptorProto and DescriptorProto call their messages, in the paths of comments.
_FILES_MESSAGES, _MESSAGES, _FIELDS = 4, 3, 2

_GROUP = 10


class ProtobufSchema:
    """The messages of a descriptor set, the file of the schema last. It has its own pool, so that names don't clash.

    Raises:
        ValueError: It is none, or lacks a file that is imported.
    """

    def __init__(self, descriptor_set: bytes) -> None:
        check_packages(with_compiler=False)
        from google.protobuf import descriptor_pool
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.message import DecodeError

        try:
            given = FileDescriptorSet.FromString(descriptor_set)
        except DecodeError:
            msg = "it is not a FileDescriptorSet: create one with protoc --include_imports --descriptor_set_out=<file>"
            raise ValueError(msg) from None
        if not given.file:
            raise ValueError("it has no files")
        last = given.file[-1].name
        self._set = with_known_files(given)
        self._file = next(file for file in self._set.file if file.name == last)
        self._pool = descriptor_pool.DescriptorPool()
        for file in self._set.file:
            try:
                self._pool.AddSerializedFile(file.SerializeToString())
            except (TypeError, ValueError) as error:  # noqa: PERF203 -- a schema has few files
                raise ValueError(f"its file {file.name} can't be used: {error}") from None

    @property
    def messages(self) -> list[str]:
        """The full names of the messages at the top of the file."""
        return [f"{self._prefix}{message.name}" for message in self._file.message_type]

    @property
    def _prefix(self) -> str:
        return f"{self._file.package}." if self._file.package else ""

    def message(self, name: str) -> Descriptor:
        """The message with a full name."""
        return self._pool.FindMessageTypeByName(name)

    def by_indexes(self) -> dict[tuple[int, ...], str | None]:
        """The full names of the file's messages by message indexes; None if the indexes have two meanings.

        Confluent's clients don't agree on what counts: its Java client passes over the entries of maps and over groups,
        its Python client does not.
        """
        found: dict[tuple[int, ...], str | None] = {}
        for made_count in (True, False):
            for indexes, name in _indexed(self._file.message_type, self._prefix, (), made_count=made_count):
                found[indexes] = name if found.get(indexes, name) == name else None
        return found

    def comments(self, name: str) -> dict[str, str]:
        """The comments of a message's fields that have one, if the descriptor set has comments."""
        defined_in = self.message(name).file.name
        file = next(each for each in self._set.file if each.name == defined_in)
        message: Any = None
        messages: Any = file.message_type
        path: tuple[int, ...] = ()
        for part in name.removeprefix(f"{file.package}.").split("."):
            index = [each.name for each in messages].index(part)
            path = (*path, _MESSAGES if path else _FILES_MESSAGES, index)
            message, messages = messages[index], messages[index].nested_type
        texts: Mapping[tuple[int, ...], str] = {
            tuple(location.path): inspect.cleandoc(location.leading_comments or location.trailing_comments)
            for location in file.source_code_info.location
        }
        found = {field.name: texts.get((*path, _FIELDS, index), "") for index, field in enumerate(message.field)}
        return {name: text for name, text in found.items() if text}

    def serialized(self) -> bytes:
        """The descriptor set, with all files that are imported."""
        return self._set.SerializeToString()


@lru_cache(maxsize=256)
def schema_of(descriptor_set: bytes) -> ProtobufSchema:
    """The schema of a descriptor set. It is kept, because a run asks several times."""
    return ProtobufSchema(descriptor_set)


def message_named(schema: ProtobufSchema, name: str | None) -> Descriptor:
    """The message with a full name, or the only one."""
    names = schema.messages
    if not names:
        raise ValueError("it has no message")
    if name is None and len(names) != 1:
        raise ValueError(f"it has {len(names)} messages ({', '.join(names)}). Name one: message={names[0]!r}")
    try:
        return schema.message(names[0] if name is None else name)
    except KeyError:
        raise ValueError(f"it has no message {name!r}; it has {', '.join(names)}") from None


def _indexed(
    messages: Any, prefix: str, above: tuple[int, ...], *, made_count: bool, groups: frozenset[str] = frozenset()
) -> Iterator[tuple[tuple[int, ...], str]]:
    index = 0
    for message in messages:
        is_made = message.options.map_entry or f".{prefix}{message.name}" in groups
        if not is_made:
            yield (*above, index), f"{prefix}{message.name}"
            of_groups = frozenset(field.type_name for field in message.field if field.type == _GROUP)
            inner = f"{prefix}{message.name}."
            yield from _indexed(message.nested_type, inner, (*above, index), made_count=made_count, groups=of_groups)
        index += made_count or not is_made
