"""Scaffolders for `dg scaffold defs`: they write files that load without changes."""

from __future__ import annotations

import json
from typing import Any

from dagster import Scaffolder, ScaffoldRequest
from pydantic import BaseModel, ConfigDict, Field

from dagster_kafka_flip.errors import ConfigurationError

_DELTA = """\
type: {type_name}

attributes:
  source:
    topics: ["{topic}"]
    # Where the first run starts; every later run continues where the previous one ended.
    starting_offsets: earliest
  # With {{topic}} in it, each topic gets its own asset and table.
  table: "{table}"
  value_format:
    type: {value_format}
"""

_RAW = 'raw # bytes; or string, or json with a schema such as "carrier STRING NOT NULL, flight INT"'

_PUBLISHED = """\
type: {type_name}

attributes:
  source:
    # Set delta.enableChangeDataFeed = true for the table.
    table: "{table}"
  sink:
    topic: "{topic}"
    # Identifies the sink permanently: its progress is stored under it.
    transactional_id_prefix: "{topic}-sink"
    # The columns that identify a row.
    key:
      type: json
      columns: [id]
  # The key of the table's asset: upstream: ...
"""

_RESOURCES = """\
type: {type_name}

attributes:
  kafka:
    bootstrap_servers: "{{{{ env.KAFKA_BOOTSTRAP_SERVERS }}}}"
  # A local Spark; for a cluster, set master or remote.
  spark: {{}}

requirements:
  env:
    - KAFKA_BOOTSTRAP_SERVERS
"""


class TopicScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    model_config = ConfigDict(extra="forbid")

    topic: str | None = Field(default=None, description="The topic. Default: the name of the new folder.")
    table: str | None = Field(default=None, description="The table. Default: warehouse/<topic>.")


class KafkaDeltaScaffoldParams(TopicScaffoldParams):
    """Options of `dg scaffold defs` for a topic's table."""

    columns: str | None = Field(
        default=None,
        description='The columns of JSON records, such as "carrier STRING NOT NULL, flight INT". Default: raw bytes.',
    )


class KafkaDeltaScaffolder(Scaffolder[KafkaDeltaScaffoldParams]):
    """Writes a defs.yaml for one topic."""

    @classmethod
    def get_scaffold_params(cls) -> type[KafkaDeltaScaffoldParams]:
        """The command line options `--topic`, `--table` and `--columns`."""
        return KafkaDeltaScaffoldParams

    def scaffold(self, request: ScaffoldRequest[KafkaDeltaScaffoldParams]) -> None:
        """Writes the file."""
        columns = request.params.columns
        value_format = _RAW if columns is None else f"json\n    schema: {json.dumps(columns)}"
        _write(request, _DELTA, value_format=value_format)


class DeltaKafkaScaffolder(Scaffolder[TopicScaffoldParams]):
    """Writes a defs.yaml that publishes one table."""

    @classmethod
    def get_scaffold_params(cls) -> type[TopicScaffoldParams]:
        """The command line options `--topic` and `--table`."""
        return TopicScaffoldParams

    def scaffold(self, request: ScaffoldRequest[TopicScaffoldParams]) -> None:
        """Writes the file."""
        _write(request, _PUBLISHED)


class KafkaResourcesScaffolder(Scaffolder):  # pyright: ignore[reportMissingTypeArgument]
    """Writes a defs.yaml with a KafkaResource and a SparkResource."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Writes the file."""
        _write(request, _RESOURCES)


def _write(request: ScaffoldRequest[Any], template: str, **places: str) -> None:
    if request.scaffold_format != "yaml":
        raise ConfigurationError("this component is scaffolded as YAML; remove --format python")
    topic = getattr(request.params, "topic", None) or request.target_path.name
    table = getattr(request.params, "table", None) or f"warehouse/{topic}"
    text = template.format(type_name=request.type_name, topic=topic, table=table, **places)
    path = request.target_path / "defs.yaml"
    if request.append:
        text = f"{path.read_text(encoding='utf-8')}---\n{text}"
    path.write_text(text, encoding="utf-8")
