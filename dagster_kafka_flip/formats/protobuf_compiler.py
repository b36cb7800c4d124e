"""Compiles the text of a Protobuf schema to a descriptor set, with `protoc` from the package grpcio-tools."""

from __future__ import annotations

import base64
import binascii
import importlib
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_IMPORT = re.compile(r"""\bimport\s+(?:public\s+|weak\s+|option\s+)?["']([^"']+)["']""")

# Serializers register no references to these, since all of them have these files.
_KNOWN_TO_ALL = re.compile(r"(google/protobuf|google/type|confluent)((?:/[a-z_]+)+)\.proto")

# The modules with the descriptors of these files.
_MODULES = {
    "google/protobuf": "google.protobuf",
    "google/type": "google.type",
    "confluent": "confluent_kafka.schema_registry.confluent",
}

# A path of a file, as Protobuf has it, that stays inside its folder on every system.
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*\.proto")

_WARNING = re.compile(r"^([IW]\d{4} |WARNING: )|: warning: ")

_OWN_NAME = "dagster_kafka_flip_schema.proto"

# A schema takes a tenth of a second.
_SECONDS = 60


def check_packages(*, with_compiler: bool) -> None:
    """Checks that the packages for Protobuf are there."""
    try:
        importlib.import_module("google.protobuf.descriptor_pool")
        if with_compiler:
            importlib.import_module("grpc_tools.protoc")
    except ImportError:
        msg = "Protobuf needs the packages protobuf and grpcio-tools: pip install 'dagster-kafka-flip[protobuf]'"
        raise ConfigurationError(msg) from None


@lru_cache(maxsize=1024)
def compiled(text: str, references: tuple[tuple[str, str], ...] = ()) -> bytes:
    """A FileDescriptorSet of all files, the schema's own last, with comments.

    Nothing but the given texts, each before those that use it, and the files that come with Protobuf can be imported.
    The text may also be a FileDescriptorProto in Base64, as Confluent's Python client registers it. The result of the
    same text is kept, because a run asks several times.

    Raises:
        ValueError: The text can't be compiled.
    """
    check_packages(with_compiler=True)
    for name, _ in references:
        if not _FILE_NAME.fullmatch(name) or ".." in PurePosixPath(name).parts:
            raise ValueError(f"it imports {name!r}, which is not a relative path of a .proto file")
    texts: dict[str, str] = {}
    binary: list[FileDescriptorProto] = []
    for name, each in [*references, (_OWN_NAME, text)]:
        found = _decoded(each)
        if found is None:
            texts[name] = each
        else:
            # By the path under which others import it; its author's own path may differ.
            found.name = name
            binary.append(found)
    binary = _with_known(binary, (name for each in texts.values() for name in _IMPORT.findall(each)))
    return _ordered(binary, texts).SerializeToString()


def with_known_files(descriptor_set: FileDescriptorSet) -> FileDescriptorSet:
    """A descriptor set with the files that come with Protobuf, if they are imported and not in it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return FileDescriptorSet(file=_with_known(descriptor_set.file, ()))


def _decoded(text: str) -> FileDescriptorProto | None:
    """The descriptor in a Base64 text; None if it is none."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        # Base64 has no blank, and Protobuf's language can't do without.
        found = FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return found if text.strip() else None


def _with_known(files: Iterable[FileDescriptorProto], imported: Iterable[str]) -> list[FileDescriptorProto]:
    """The files, and the known ones that they or texts import; each follows those that it imports."""
    given = {file.name: file for file in files}
    found: dict[str, FileDescriptorProto] = {}

    def add(name: str) -> None:
        file = given.get(name) or (None if name in found else _known(name))
        if file is None or name in found:
            return
        for each in file.dependency:
            if each not in given:
                add(each)
        found[name] = file

    for name in imported:
        if name not in given:
            add(name)
    for name in given:
        add(name)
    return list(found.values())


def _known(name: str) -> FileDescriptorProto | None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    match = _KNOWN_TO_ALL.fullmatch(name)
    if match is None:
        return None
    try:
        module = importlib.import_module(f"{_MODULES[match[1]]}{match[2].replace('/', '.')}_pb2")
    except ImportError:
        return None
    file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    file.name = name
    return file


def _ordered(binary: list[FileDescriptorProto], texts: dict[str, str]) -> FileDescriptorSet:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    if not texts:
        return FileDescriptorSet(file=[*(each for each in binary if each.name != _OWN_NAME), binary[-1]])
    with tempfile.TemporaryDirectory(prefix="dagster-kafka-flip-protobuf-") as folder:
        root = Path(folder) / "files"
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        known, own = Path(folder) / "known", [each for each in binary if each.name == _OWN_NAME]
        known.write_bytes(
            FileDescriptorSet(file=[each for each in binary if each.name != _OWN_NAME]).SerializeToString()
        )
        # A descriptor is the compiled schema itself: only its references are compiled.
        named = sorted(texts) if own else [_OWN_NAME]
        made = FileDescriptorSet.FromString(_run(Path(folder), root, known, named))
    files = {each.name: each for each in [*made.file, *binary] if each.name != _OWN_NAME}
    last = own or [each for each in made.file if each.name == _OWN_NAME]
    return FileDescriptorSet(file=[*files.values(), *last])


def _run(folder: Path, root: Path, known: Path, names: list[str]) -> bytes:
    from grpc_tools import protoc

    out = folder / "out"
    # As a file: with -m or -c Python would look for modules in the current folder.
    command = [
        sys.executable,
        str(protoc.__file__),
        f"-I{root}",
        f"--descriptor_set_in={known}",
        "--include_imports",
        "--include_source_info",
        f"--descriptor_set_out={out}",
        *names,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"protoc did not compile a Protobuf schema within {_SECONDS} seconds") from None
    if done.returncode < 0:
        # It says nothing about the schema, and as its result it would reject all of its records.
        raise ConfigurationError(
            f"protoc was killed by signal {-done.returncode} while it compiled a Protobuf schema", "Run again"
        )
    if done.returncode:
        lines = [line.replace(f"{root}/", "") for line in done.stderr.splitlines() if not _WARNING.search(line)]
        raise ValueError("; ".join(lines[:5]).replace(_OWN_NAME, "schema") or f"protoc ended with {done.returncode}")
    return out.read_bytes()
