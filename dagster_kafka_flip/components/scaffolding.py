"""Scaffolders for `dg scaffold defs`: they write files that load without changes."""

from __future__ import annotations

from typing import Any, ClassVar

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
  # How values are read: raw (bytes), string, or json with a schema such as "carrier STRING NOT NULL, flight INT".
  value_format:
    type: raw
"""

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


class KafkaDeltaScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    model_config = ConfigDict(extra="forbid")

    topic: str | None = Field(default=None, description="The topic. Default: the name of the new folder.")
    table: str | None = Field(default=None, description="The table. Default: warehouse/<topic>.")


class _TopicScaffolder(Scaffolder[KafkaDeltaScaffoldParams]):
    """Writes a defs.yaml for one topic and one table."""

    text: ClassVar[str]
    """The file, with places for `type_name`, `topic` and `table`."""

    @classmethod
    def get_scaffold_params(cls) -> type[KafkaDeltaScaffoldParams]:
        """The command line options `--topic` and `--table`."""
        return KafkaDeltaScaffoldParams

    def scaffold(self, request: ScaffoldRequest[KafkaDeltaScaffoldParams]) -> None:
        """Writes the file."""
        topic = request.params.topic or request.target_path.name
        table = request.params.table or f"warehouse/{topic}"
        _write(request, self.text.format(type_name=request.type_name, topic=topic, table=table))


class KafkaDeltaScaffolder(_TopicScaffolder):
    """Writes a defs.yaml for one topic."""

    text = _DELTA


class DeltaKafkaScaffolder(_TopicScaffolder):
    """Writes a defs.yaml that publishes one table."""

    text = _PUBLISHED


class KafkaResourcesScaffolder(Scaffolder):  # pyright: ignore[reportMissingTypeArgument]
    """Writes a defs.yaml with a KafkaResource and a SparkResource."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Writes the file."""
        _write(request, _RESOURCES.format(type_name=request.type_name))


def _write(request: ScaffoldRequest[Any], text: str) -> None:
    if request.scaffold_format != "yaml":
        raise ConfigurationError("this component is scaffolded as YAML; remove --format python")
    path = request.target_path / "defs.yaml"
    if request.append:
        text = f"{path.read_text(encoding='utf-8')}---\n{text}"
    path.write_text(text, encoding="utf-8")
