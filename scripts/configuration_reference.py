"""Writes docs/configuration.md from the signatures, fields and docstrings of the package.

    python -m scripts.configuration_reference

A test compares the document with what this writes, so that it says what the code says.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
import typing
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import dagster_kafka_flip
from dagster_kafka_flip.assets.asset_options import OPTIONS_OF_DAGSTER, AssetOptions
from dagster_kafka_flip.components.schemas import help_of
from dagster_kafka_flip.settings.docstrings import entries as entries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

_INTRODUCTION = """\
# Configuration

<!-- Written by scripts/configuration_reference.py; change the docstrings, and run it. -->

Every field and parameter, with its type (unless the default shows it, or it is a `str`) and default. The
[reference](reference.md) shows how they work together.
"""

# An option that this many formats or serializers have is listed once.
_SHARED_BY = 3
# An option of Dagster's with fewer is as Dagster says.
_WORDS_OF_OUR_OWN = 5
_SHARED_BY_FORMATS = "Options of several formats"
_SHARED_BY_SERIALIZERS = "Options of several serializers"
_FORMATS = "Formats and columns"
_SINKS = "Back to Kafka"
# Whose options others have, too, with the same texts.
_SHARED_WITH = (
    "kafka_delta_asset",
    "delta_kafka_asset",
    "AssetOptions",
    "KafkaResource",
    "SparkResource",
    "Limits",
    "ingest",
)

# What a page section is made of: a heading, and the public names below it.
_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Assets": (
        "kafka_delta_asset",
        "build_kafka_delta_asset",
        "build_kafka_delta_assets",
        "build_kafka_delta_multi_asset",
        "KafkaDeltaTable",
        "AssetOptions",
        "kafka_topic_asset",
        "kafka_delta_checks",
        "kafka_delta_maintenance",
        "delta_kafka_asset",
        "build_delta_kafka_asset",
        "delta_kafka_checks",
    ),
    "Components": ("KafkaDeltaComponent", "DeltaKafkaComponent", "KafkaResourcesComponent"),
    "Configuration of one run": ("IngestRunConfig", "WindowsRunConfig", "PublishRunConfig"),
    "Resources": ("KafkaResource", "KafkaClusterConfig", "SchemaRegistryResource", "SparkResource"),
    "Sources": ("KafkaSource", "OffsetsInitializer", "KafkaConnection", "KafkaTableOptions"),
    "The schema registry": ("SchemaRegistry",),
    _FORMATS: (
        "RawFormat",
        "StringFormat",
        "JsonFormat",
        "CsvFormat",
        "AvroFormat",
        "ProtobufFormat",
        "DebeziumFormat",
        "DebeziumAvroFormat",
        "MaxwellFormat",
        "CanalFormat",
        "OggFormat",
        "KafkaColumns",
    ),
    "Tables": ("DeltaTarget", "Append", "Upsert", "Scd2", "DeadLetters", "Limits", "Windows"),
    _SINKS: (
        "DeltaSource",
        "KafkaSink",
        "JsonSerializer",
        "StringSerializer",
        "RawSerializer",
        "AvroSerializer",
        "JsonSchemaSerializer",
        "ProtobufSerializer",
    ),
    "Without Dagster": ("ingest", "rewrite_windows", "publish", "build_session", "LocalBroker"),
}

_PARAGRAPH = "\n\n"
_DOC_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$", flags=re.MULTILINE)
_UNITS = (("days", timedelta(days=1)), ("hours", timedelta(hours=1)), ("seconds", timedelta(seconds=1)))
_REQUIRED = "required"
_NO_DEFAULT = {"none", "empty"}
# Types that a default of this form shows.
_TYPES_OF_DEFAULTS = {
    "bool": "`(True|False)`",
    "str": '`"',
    "int": r"`\d+`",
    "float": r"`\d+\.",
    "timedelta": r"`timedelta\(",
}

# Classes that have the fields of another one, which lists them.
_FIELDS_OF = {
    "KafkaClusterConfig": "KafkaResource",
    "KafkaConnection": "KafkaResource",
    "SchemaRegistry": "SchemaRegistryResource",
}
# What pages of their own say more of, and all that a docstring says behind its first paragraph.
_PAGES = {
    "build_kafka_delta_assets": "reference.md#a-table-for-each-topic",
    "kafka_topic_asset": "automation.md#observing-topics",
    "kafka_delta_checks": "automation.md#what-they-check",
    "delta_kafka_checks": "automation.md#published_equals_table",
    "kafka_delta_maintenance": "operations.md#table-maintenance",
    "delta_kafka_asset": "publishing.md",
    "KafkaDeltaComponent": "reference.md#tables-in-yaml",
    "DeltaKafkaComponent": "reference.md#back-to-a-topic",
    "KafkaResource": "reference.md#kafkaresource",
    "SparkResource": "reference.md#sparkresource",
    "KafkaSource": "reference.md#kafkasource",
    "OffsetsInitializer": "architecture.md#the-plan",
    "KafkaResourcesComponent": "reference.md#resources-in-yaml",
    "Upsert": "changelogs.md",
    "Scd2": "changelogs.md#the-history-of-each-key",
    "AvroSerializer": "publishing.md#keys-and-values",
    "JsonSchemaSerializer": "publishing.md#keys-and-values",
    "ProtobufSerializer": "publishing.md#keys-and-values",
    "LocalBroker": "reference.md#broker",
}
_EXCEPT = {"KafkaResource": ", except `clusters`; `bootstrap_servers` is required"}


@dataclass(frozen=True)
class _Row:
    """One field, parameter or option."""

    name: str
    type: str
    default: str
    text: str

    def __str__(self) -> str:
        default, text = _once(self.default, self.text)
        kind = self.type.removesuffix(" or none") if self.default == "none" else self.type
        choices = re.findall(r'`"([^"`]*)"', kind)
        if kind == "`str`" or kind.endswith("Attribute`") or (choices and all(choice in text for choice in choices)):
            # A name of YAML's schemas says nothing, and the text has the choices.
            kind = ""
        elif any(kind == f"`{name}`" and re.match(pattern, default) for name, pattern in _TYPES_OF_DEFAULTS.items()):
            kind = ""
        said = "; ".join(each for each in (kind, "" if default in _NO_DEFAULT else default) if each)
        return f"- `{self.name}`{said and f' ({said})'}: {text}"


def _once(default: str, text: str) -> tuple[str, str]:
    """A default and a text, neither of which says what the other one does."""
    if default in {"none", "empty"} and (found := re.search(r" Default: ((?:[^.`]|`[^`]*`)+)\.$", text)):
        return found[1], text[: found.start()]
    if default in {_REQUIRED, "none", "empty"}:
        return default, text
    return default, _without_default(text, default)


def _without_default(text: str, default: str) -> str:
    """A text without the sentence that repeats the column of defaults."""
    plain = {default, default.strip('`"'), {"`True`": "yes", "`False`": "no"}.get(default, default)}
    text = text.replace(" (default)", "").replace("(default; ", "(")
    if default.startswith("`timedelta("):
        return re.sub(r" Default: (\d+|one) \w+\.", "", text)
    return re.sub(r" Default:? ([^.;]+)\.$", lambda found: "" if found[1].strip("`") in plain else found[0], text)


def reference() -> str:
    """The document."""
    parts = [_INTRODUCTION, *(_section(title, names) for title, names in _SECTIONS.items())]
    return "\n".join(parts)


def _section(title: str, names: tuple[str, ...]) -> str:
    shared: list[_Row] = []
    pieces = [f"## {title}\n"]
    if title == _FORMATS:
        pieces.append("[Formats](formats.md) has what each rejects.\n")
        shared = _shared([_rows(getattr(dagster_kafka_flip, name)) for name in names])
        pieces += [f"### {_SHARED_BY_FORMATS}\n", _list(shared)]
    of = _SHARED_BY_FORMATS
    if title == _SINKS:
        of = _SHARED_BY_SERIALIZERS
        shared = _shared([_rows(getattr(dagster_kafka_flip, name)) for name in names])
        pieces += [f"### {of}\n", _list(shared)]
    pieces += [piece for name in names for piece in _piece(name, getattr(dagster_kafka_flip, name), shared, of)]
    return "\n".join(pieces)


def _shared(tables: list[list[_Row]]) -> list[_Row]:
    """The rows that several tables have, in one form each."""
    counts = Counter(row for rows in tables for row in rows)
    rows = [row for row, count in counts.items() if count >= _SHARED_BY]
    names = Counter(row.name for row in rows)
    return [row for row in rows if names[row.name] == 1]


def _rows(what: Any) -> list[_Row]:
    """The fields or parameters."""
    _, texts = _documented(what)
    if inspect.isclass(what) and issubclass(what, BaseModel) and _takes_fields(what):
        return _fields(what, texts)
    return _parameters(what, texts)


def _with_shared(rows: list[_Row], shared: list[_Row], title: str) -> Iterator[str]:
    """A list of the rows that are not shared, and the names of those that are."""
    own = [row for row in rows if row not in shared]
    if own:
        yield _list(own)
    if names := _named([row for row in rows if row in shared]):
        yield f"[Also](#{title.lower().replace(' ', '-')}) {names}.\n"


def _named(rows: list[_Row]) -> str:
    return ", ".join(f"`{row.name}`" for row in rows)


def _piece(name: str, what: Any, shared: list[_Row], of: str) -> Iterator[str]:
    summary = _documented(what)[0]
    if name in _PAGES:
        summary = f"{summary.partition(_PARAGRAPH)[0]} [More]({_PAGES[name]})."
    elif shared and of == _SHARED_BY_FORMATS:
        # formats.md says the rest.
        summary = summary.partition(_PARAGRAPH)[0]
    yield f"### `{name}`\n\n{summary}\n"
    if name == "OffsetsInitializer":
        yield _list_of_calls(_calls(what))
    elif name == "AssetOptions":
        options = _dagsters_options()
        plain = [row for row in options if len(row.text.split()) < _WORDS_OF_OUR_OWN]
        yield _list([row for row in options if row not in plain])
        yield f"Also {_named(plain)}.\n"
    else:
        rows = _rows(what)
        as_in: list[str] = []
        if name in _FIELDS_OF:
            same = _FIELDS_OF[name]
            others = {row.name for row in _rows(getattr(dagster_kafka_flip, same))}
            rows = [row for row in rows if row.name not in others]
            yield f"Its fields are those of [`{same}`](#{same.lower()}){_EXCEPT.get(same, '')}.\n"
        for other in _SHARED_WITH[: _SHARED_WITH.index(name)] if name in _SHARED_WITH else _SHARED_WITH:
            its = _dagsters_options() if other == "AssetOptions" else _rows(getattr(dagster_kafka_flip, other))
            there = {(row.name, row.text) for row in its}
            same = [row for row in rows if (row.name, row.text) in there]
            if len(same) > 1:
                rows = [row for row in rows if row not in same]
                as_in += [f"Also {_named(same)}, as in [`{other}`](#{other.lower()}).\n"]
        yield from _with_shared(rows, shared, of)
        yield from as_in
    if name == "KafkaSource":
        calls = _calls(type(dagster_kafka_flip.KafkaSource.builder()))
        yield f"`KafkaSource.builder()` sets these fields: {', '.join(f'`{call}`' for call in calls)}.\n"


def _dagsters_options() -> list[_Row]:
    texts = {name: _line(text) for each in OPTIONS_OF_DAGSTER for name, text in entries_of(each).items()}
    types = {name: kind for each in OPTIONS_OF_DAGSTER for name, kind in each.__annotations__.items()}
    # Python keeps each type as a reference to its text.
    return [
        _Row(name, _type(types[name].__forward_arg__, AssetOptions.__module__), "none", text)
        for name, text in texts.items()
    ]


def _takes_fields(model: type[BaseModel]) -> bool:
    """Whether a model is made of its fields, and not of parameters of its own."""
    parameters = list(inspect.signature(model.__init__).parameters.values())[1:]
    # Those without a name are there to be refused.
    return all(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters)


def _documented(what: Any) -> tuple[str, dict[str, str]]:
    """The text of a docstring before its sections, and what it says of each name, those of bases included."""
    texts: dict[str, str] = {}
    for each in reversed(what.__mro__ if inspect.isclass(what) else [what]):
        if each.__module__.startswith(dagster_kafka_flip.__name__):
            entries = {name: _line(text) for name, text in entries_of(each).items()}
            # "See Format." says what the base's text, which is here already, says at length.
            texts |= {name: text for name, text in entries.items() if not (name in texts and text.startswith("See "))}
    summary = _DOC_SECTION.split(inspect.getdoc(what) or "")[0].strip()
    return _PARAGRAPH.join(_wrapped(paragraph) for paragraph in summary.split(_PARAGRAPH)), texts


def _wrapped(paragraph: str) -> str:
    return paragraph if paragraph.startswith((" ", "-")) else _line(paragraph)


def _line(text: str) -> str:
    return " ".join(text.split())


def _fields(model: type[BaseModel], texts: Mapping[str, str]) -> list[_Row]:
    rows: list[_Row] = []
    for name, field in model.model_fields.items():
        if model is dagster_kafka_flip.KafkaDeltaComponent and field.description == help_of(
            dagster_kafka_flip.kafka_delta_asset
        ).get(name):
            # As in kafka_delta_asset or AssetOptions.
            continue
        owner = next(each for each in model.__mro__ if name in vars(each).get("__annotations__", {}))
        annotation = vars(owner)["__annotations__"][name]
        default = field.get_default(call_default_factory=True, validated_data={})
        rows.append(
            _Row(
                name=field.alias or name,
                # The text says what a schema, or an attribute of YAML, may be.
                type="" if field.alias or "Resolver object" in str(annotation) else _type(annotation, owner.__module__),
                default=_REQUIRED if default is PydanticUndefined else _value(default),
                text=_line(field.description or "") or texts[field.alias or name],
            )
        )
    return rows


def _parameters(function: Any, texts: Mapping[str, str]) -> list[_Row]:
    signature = inspect.signature(function)
    return [
        _Row(
            name=str(parameter).partition(":")[0],
            type=_type(parameter.annotation, function.__module__),
            default=_default(parameter),
            text=texts[name],
        )
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]


def _default(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return "none"
    return _REQUIRED if parameter.default is parameter.empty else _value(parameter.default)


def _calls(maker: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, member in vars(maker).items():
        function: Callable[..., Any] = member.__func__ if isinstance(member, classmethod) else member
        is_call = inspect.isfunction(function) and not name.startswith("_")
        if is_call and str(function.__annotations__.get("return")) in {maker.__name__, "KafkaSource"}:
            arguments = [text for text in map(_argument, inspect.signature(function).parameters.values()) if text]
            summary, texts = _documented(function)
            meaning = " ".join([summary.replace("\n", " "), *(f"`{key}`: {text}" for key, text in texts.items())])
            found[f"{name}({', '.join(arguments)})"] = meaning
    return found


def _list_of_calls(calls: Mapping[str, str]) -> str:
    return "".join(f"- `{call}`: {meaning}\n" for call, meaning in calls.items())


def _argument(parameter: inspect.Parameter) -> str:
    if parameter.name in {"self", "cls"}:
        return ""
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = parameter.default
    if default is parameter.empty:
        return star + parameter.name
    return f"{parameter.name}={default if isinstance(default, enum.Enum) else repr(default)}"


def _list(rows: list[_Row]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _type(annotation: Any, module: str) -> str:
    """An annotation in words: what may be given."""
    if str(annotation).startswith("Unpack["):
        return "from [`AssetOptions`](#assetoptions)"
    text = re.sub(r"\b(typing|attributes)\.", "", annotation if isinstance(annotation, str) else _name(annotation))
    text = re.sub(r"\w+", lambda found: _literal(found[0], module), text)
    # The meaning lists what a list of many choices may have.
    text = re.sub(r"(?<=\[)Literal\[([^\]]*,){4}[^\]]*\]", "str", text)
    choices: list[str] = []
    depth, begin = 0, 0
    for index, letter in enumerate(f"{text}|"):
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and depth == 0:
            choices += _choices(text[begin:index].strip())
            begin = index + 1
    return " or ".join(choices)


def _name(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) and not typing.get_args(annotation) else str(annotation)


def _literal(name: str, module: str) -> str:
    meant = getattr(sys.modules[module], name, None)
    if typing.get_origin(meant) is not typing.Literal:
        return name
    return f"Literal[{', '.join(map(repr, typing.get_args(meant)))}]"


def _choices(text: str) -> list[str]:
    literal = re.fullmatch(r"Literal\[(.*)\]", text.replace("'", '"'))
    if literal is not None:
        return [f"`{value.strip()}`" for value in literal[1].split(",")]
    return ["none" if text == "None" else f"`{text.replace(' | ', ' or ')}`"]


def _value(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, (str, tuple, list, dict)) and not default:
        return "empty"
    values = default if isinstance(default, tuple) else (default,)
    return ", ".join(f"`{_code(value)}`" for value in values)


def _code(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, timedelta):
        name, unit = next(each for each in _UNITS if value % each[1] == timedelta(0))
        return f"timedelta({name}={value // unit})"
    if isinstance(value, BaseModel) and type(value).__str__ is BaseModel.__str__:
        return repr(value)
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    DOCUMENT.write_text(reference(), encoding="utf-8")
