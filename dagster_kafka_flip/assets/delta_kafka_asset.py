"""Dagster assets that publish Delta tables to Kafka topics: a decorator and a factory function."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, AssetObservation, AssetsDefinition, DataVersion, JsonMetadataValue, MaterializeResult

from dagster_kafka_flip.assets.asset_options import MaterializedOptions, dagsters_errors, given_options
from dagster_kafka_flip.assets.asset_step import asset_spec, step
from dagster_kafka_flip.assets.column_descriptions import record_schema
from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.assets.metadata import COLUMN_SCHEMA, shown
from dagster_kafka_flip.assets.position_record import newest_materializations
from dagster_kafka_flip.assets.registry import ingestions_of, register, registered
from dagster_kafka_flip.assets.resources import kafka_of, registries_of, spark_of
from dagster_kafka_flip.assets.run_config import PublishRunConfig
from dagster_kafka_flip.assets.topic_asset import op_name, topic_asset_key
from dagster_kafka_flip.assets.transform_arguments import ROWS, bound, check_transform, resources_of
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import check_arguments, check_options, expect, with_options_of
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.publish import publish
from dagster_kafka_flip.sink.result import SINK, SINK_PROGRESS, known_of
from dagster_kafka_flip.source.plan import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dagster import AssetExecutionContext, DagsterInstance
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from dagster_kafka_flip.assets.dagster_internals import CoercibleToAssetKey
    from dagster_kafka_flip.sink.result import PublishResult

# Characters of the run id in the prefix of a re-publication.
_SHORT = 8


@dataclass(frozen=True)
class Publishing:
    """What one asset publishes, and the keys of the resources with which it does."""

    source: DeltaSource
    sink: KafkaSink
    limits: Limits
    cluster: str | None
    kafka: str
    spark: str
    transform: Callable[..., DataFrame] | None = None

    @property
    def resource_keys(self) -> set[str]:
        """The keys of all resources that a run needs."""
        return {self.kafka, self.spark, *self.sink.registry_keys, *resources_of(self.transform, ROWS)}

    def bound_transform(self, context: Any) -> Callable[[DataFrame], DataFrame] | None:
        """Binds context and resources to the transform."""
        return bound(self.transform, ROWS, context)

    def bound_sink(self, context: Any) -> KafkaSink:
        """Binds the schema registries that are resources to the sink."""
        return self.sink.with_registries(registries_of(context, self.sink.registry_keys))


@check_options(MaterializedOptions.__annotations__, inside={"source": DeltaSource, "sink": KafkaSink, "limits": Limits})
def delta_kafka_asset(
    *,
    source: DeltaSource,
    sink: KafkaSink,
    upstream: AssetsDefinition | CoercibleToAssetKey | None = None,
    limits: Limits | None = None,
    cluster: str | None = None,
    kafka: str = "kafka",
    spark: str = "spark",
    **asset_options: Unpack[MaterializedOptions],
) -> Callable[[Callable[..., DataFrame]], AssetsDefinition]:
    """Creates an asset from a transform: publishes the transformed changes of a Delta table to a topic, exactly once.

    The function takes `rows`, a lazy Spark DataFrame of the rows to publish, and returns the rows that are published.
    It may select, derive and drop columns, filter rows, and turn one row into several. Each result row must come from
    one input row alone, and must be the same each time. The function keeps the columns `_change_type` and
    `_commit_version`. It may also take `context`, and any resource by its key, as in Dagster's `@asset`.

    The asset is the topic: its key is `topic_asset_key(sink.topic, cluster, kafka)`, which is upstream of the assets
    that read the topic. So it replaces `kafka_topic_asset` for this topic.

    Each run continues with the sink's progress in Kafka, up to the table's newest version. A run that finds nothing new
    records an observation, so that no downstream asset runs. If the table is on a local file system, it starts no
    Spark.

    Args:
        source: The table, and what to publish of it.
        sink: The topic, the guarantee, and how a row becomes a record.
        upstream: The table's asset, or its key. Default: none.
        limits: Limits of transactions and runs. Default: everything new; a transaction ends after half of the sink's
            `transaction_timeout`.
        cluster: Name in the KafkaResource's `clusters`. Default: the resource's own fields.
        kafka: Key of the KafkaResource.
        spark: Key of the SparkResource.
        **asset_options: Dagster's options: those of AssetOptions without a key and partitions. Default of `pool`:
            `kafka-sink:` and the `transactional_id_prefix`.

    Returns:
        A decorator that returns an AssetsDefinition.

    Raises:
        ConfigurationError: The options contradict each other, `upstream` does not have the source's table, or the
            function does not take `rows`.
    """
    expect("source", source, DeltaSource, 'DeltaSource(table="lake/orders")')
    expect("sink", sink, KafkaSink, 'KafkaSink(topic="orders", transactional_id_prefix="orders")')
    if limits is not None:
        expect("limits", limits, Limits, "Limits(max_records_per_batch=100_000)")
    if cluster is not None:
        expect("cluster", cluster, str, '"eu", a name in the clusters of the KafkaResource')
    options = given_options(kafka=kafka, spark=spark, **asset_options)
    sink.check_content(source.content)
    key = topic_asset_key(sink.topic, cluster, kafka)
    publishing = Publishing(source, sink, limits or Limits(), cluster, kafka, spark)
    options.setdefault("pool", f"kafka-sink:{sink.transactional_id_prefix}")
    deps = _upstream(upstream, source, key)

    def decorate(transform: Callable[..., DataFrame]) -> AssetsDefinition:
        check_transform(transform, ROWS)
        made = publishing if transform is _as_it_is else replace(publishing, transform=transform)
        with dagsters_errors(key.to_user_string()):
            spec = asset_spec(
                key,
                {**options, "description": options.get("description") or inspect.getdoc(transform)},
                deps=deps,
                kinds={"kafka", "spark"},
                metadata={
                    COLUMN_SCHEMA: record_schema(),
                    "delta/published_table": str(source),
                    SINK: sink.transactional_id_prefix,
                },
            )
        assets_def = step(
            op_name("publish", [key]),
            [spec],
            lambda context: _run(context, made),
            options,
            resources=made.resource_keys,
            config=PublishRunConfig,
            transform=made.transform,
        )
        return register(assets_def, {key: made})

    return decorate


@with_options_of(delta_kafka_asset)
@check_arguments
def build_delta_kafka_asset(*, source: DeltaSource, sink: KafkaSink, **options: Any) -> AssetsDefinition:
    """Creates an asset that publishes the changes of a Delta table to a topic as they are, without a function.

    Args:
        source: The table, and what to publish of it.
        sink: The topic, the guarantee, and how a row becomes a record.
        **options: All other options of `delta_kafka_asset`.

    Raises:
        ConfigurationError: The options contradict each other, or `upstream` does not have the source's table.
    """
    expect("sink", sink, KafkaSink, 'KafkaSink(topic="orders", transactional_id_prefix="orders")')
    options["description"] = options.get("description") or f"The Kafka topic {sink.topic}, published from {source}."
    return delta_kafka_asset(source=source, sink=sink, **options)(_as_it_is)


def _as_it_is(rows: DataFrame) -> DataFrame:
    return rows


def publishing_of(assets_def: AssetsDefinition) -> Publishing | None:
    """What a definition's asset publishes; None if it is not of `delta_kafka_asset`."""
    return next(iter(registered(assets_def, Publishing).values()), None)


def _upstream(
    upstream: AssetsDefinition | CoercibleToAssetKey | None, source: DeltaSource, topic: AssetKey
) -> list[AssetKey]:
    """The key of the table's asset."""
    if upstream is None:
        return []
    if not isinstance(upstream, AssetsDefinition):
        expect("upstream", upstream, (str, AssetKey, list, tuple), '"lake/orders", or the definition of the asset')
        is_text = isinstance(upstream, str)
        return [AssetKey.from_user_string(upstream) if is_text else AssetKey.from_coercible(upstream)]
    landed = ingestions_of(upstream)
    if landed:
        found = [key for key, each in landed.items() if each.target.identity == source.target.identity]
        tables = ", ".join(sorted(str(each.target) for each in landed.values()))
        what = f"writes to {tables}, not to {source}"
    else:
        found, what = list(upstream.keys), f"has {len(upstream.keys)} assets"
    if len(found) != 1:
        raise ConfigurationError(
            f"upstream: the definition {what}", f"Set upstream to the key of the asset of {source}"
        )
    if topic in upstream.asset_deps[found[0]]:
        raise ConfigurationError(
            f"upstream: {found[0].to_user_string()} lands the topic {topic.to_user_string()}, and the sink publishes "
            "to it: each record would be published again, without end",
            "Publish to another topic",
        )
    return found


def _run(context: AssetExecutionContext, publishing: Publishing) -> Iterator[MaterializeResult[Any] | AssetObservation]:
    # Without a code location, as with `materialize()`, there are no others.
    with contextlib.suppress(CheckError):
        check_prefix(context.asset_key, publishing, context.repository_def.assets_defs_by_key)
    config = PublishRunConfig(**context.op_execution_context.op_config)
    source = publishing.source
    sink = publishing.bound_sink(context)
    again = config.again
    if again is not None:
        first, last = again
        run_id = context.run.root_run_id or context.run_id
        # A separate sink, so that the asset's progress stays; the same one if the run is executed again, but not if it
        # is executed again with other versions.
        prefix = f"{sink.transactional_id_prefix}-again-{first}-{last}-{run_id[:_SHORT]}"
        source = source.changed(start=first, stop=last)
        sink = sink.changed(transactional_id_prefix=prefix, progress_topic="")
        context.log.warning(
            "publishing versions %d to %d of %s again: readers of %s get these records a second time, after newer ones",
            first,
            last,
            source,
            sink.topic,
        )
    elif config.stop is not None:
        source = source.changed(stop=config.stop)
    prefix = sink.transactional_id_prefix
    known = _known(context.instance, context.asset_key, prefix)
    result = publish(
        source,
        sink,
        spark=spark_of(context, publishing.spark),
        connection=kafka_of(context, publishing.kafka, publishing.cluster),
        limits=config.limited(publishing.limits),
        known=known,
        transform=publishing.bound_transform(context),
        logger=context.log,
    )
    again_too = {} if again is None else {"kafka/published_again": True}
    metadata = shown({**result.metadata, **again_too})
    if known and known == result.known:
        yield AssetObservation(context.asset_key, description="Nothing new.", metadata=metadata)
    else:
        yield MaterializeResult(
            asset_key=context.asset_key, metadata=metadata, data_version=_data_version(result, sink, again)
        )


def check_prefix(key: AssetKey, publishing: Publishing, definitions: Mapping[AssetKey, AssetsDefinition]) -> None:
    """Checks that no other asset publishes under the same prefix."""
    prefix = publishing.sink.transactional_id_prefix
    for other_key, definition in definitions.items():
        other = publishing_of(definition)
        if other is None or other_key == key:
            continue
        is_same_cluster = (other.cluster, other.kafka) == (publishing.cluster, publishing.kafka)
        if is_same_cluster and other.sink.transactional_id_prefix == prefix:
            raise ConfigurationError(
                f"the assets {key.to_user_string()} and {other_key.to_user_string()} both publish under the "
                f"transactional_id_prefix {prefix}, so each topic would get only some of the changes",
                "Give each its own prefix",
            )


def _known(instance: DagsterInstance, key: AssetKey, prefix: str) -> dict[int, tuple[int, int]]:
    """What the newest recorded run of a sink reached, by lane."""
    for record in newest_materializations(instance, key):
        recorded = {} if record.asset_materialization is None else record.asset_materialization.metadata
        progress, sink = recorded.get(SINK_PROGRESS), recorded.get(SINK)
        if isinstance(progress, JsonMetadataValue) and sink is not None and sink.value == prefix:
            return known_of(progress.data)
    return {}


def _data_version(result: PublishResult, sink: KafkaSink, again: tuple[int, int] | None) -> DataVersion:
    """A hash of the progress: unchanged if a run published nothing."""
    parts = [sink.transactional_id_prefix, result.topic, result.table_id, result.known_json, again]
    return DataVersion(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32])
