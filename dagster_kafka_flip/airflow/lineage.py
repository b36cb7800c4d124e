"""What a task reports to OpenLineage's provider, with the names of OpenLineage's specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.providers.openlineage.extractors import OperatorLineage

    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.table.target import DeltaTarget

# All clients' schemes of one store count as one, and the names in a store have no leading slash.
_OTHER_SCHEMES = {"abfs": "abfss", "s3a": "s3", "s3n": "s3", "wasb": "wasbs"}
_STORES = frozenset({"abfss", "gs", "oss", "s3", "wasbs"})


@dataclass(frozen=True)
class DatasetName:
    """The name of a topic or a table, which other tools give it too: in its cluster or store."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Lineage:
    """What a task read and wrote: how many rows or records, and the table's version; None where unknown."""

    inputs: tuple[DatasetName, ...] = ()
    outputs: tuple[DatasetName, ...] = ()
    rows: int | None = None
    version: int | None = None

    def facets(self) -> OperatorLineage[Any, Any]:
        """Returns the lineage in the provider's classes. Only an installed provider calls this."""
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.facet_v2 import (
            DatasetFacet,
            OutputDatasetFacet,
            dataset_version_dataset,
            output_statistics_output_dataset,
        )

        of_dataset: dict[str, DatasetFacet] = {}
        of_output: dict[str, OutputDatasetFacet] = {}
        if self.version is not None:
            of_dataset["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(self.version))
        if self.rows is not None:
            statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=self.rows)
            of_output["outputStatistics"] = statistics
        inputs: list[Any] = [InputDataset(each.namespace, each.name) for each in self.inputs]
        outputs: list[Any] = [
            OutputDataset(each.namespace, each.name, facets=of_dataset, outputFacets=of_output) for each in self.outputs
        ]
        return OperatorLineage(inputs=inputs, outputs=outputs)


def topic_names(connection: KafkaConnection, topics: Iterable[str]) -> tuple[DatasetName, ...]:
    """Returns the names of topics: in `kafka://` and the first bootstrap server, as in OpenLineage's integrations."""
    cluster = "kafka://" + connection.bootstrap_servers.partition(",")[0]
    return tuple(DatasetName(cluster, topic) for topic in topics)


def table_names(target: DeltaTarget) -> tuple[DatasetName, ...]:
    """Returns the name of a table, by its place; none for a table of a catalog, whose place only Spark knows."""
    if target.local_path is not None:
        return (DatasetName("file", str(target.local_path)),)
    if not target.is_path:
        return ()
    place = urlsplit(target.identity)
    scheme = _OTHER_SCHEMES.get(place.scheme, place.scheme)
    name = place.path.lstrip("/") if scheme in _STORES else place.path
    return (DatasetName(f"{scheme}://{place.netloc}", name),)
