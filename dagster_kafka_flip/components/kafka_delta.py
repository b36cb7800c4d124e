"""KafkaDeltaComponent: assets that ingest Kafka topics into Delta tables, defined in a defs.yaml."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dagster import (
    AssetSelection,
    AssetSpec,
    AutomationCondition,
    ComponentLoadContext,
    Definitions,
    ScheduleDefinition,
    scaffold_with,
)
from pydantic import BaseModel, Field, PrivateAttr

from dagster_kafka_flip.assets.asset_options import AssetOptions
from dagster_kafka_flip.assets.asset_per_topic import assets_by_topic, filled, has_topic, matching_topics
from dagster_kafka_flip.assets.kafka_delta_asset import build_kafka_delta_asset, kafka_delta_asset
from dagster_kafka_flip.assets.maintenance_asset import kafka_delta_maintenance
from dagster_kafka_flip.assets.registry import by_table, check_streams, ingestions_of
from dagster_kafka_flip.assets.topic_asset import observable_topics, upstream_asset_keys
from dagster_kafka_flip.checks.kafka_delta_checks import kafka_delta_checks
from dagster_kafka_flip.components import attributes
from dagster_kafka_flip.components.checked_component import CheckedComponent
from dagster_kafka_flip.components.kafka_resources import KafkaResourceAttribute, KafkaResourcesComponent
from dagster_kafka_flip.components.scaffolding import KafkaDeltaScaffolder
from dagster_kafka_flip.components.schemas import options_of
from dagster_kafka_flip.components.templates import placed
from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dagster import AssetKey, AssetsDefinition

    from dagster_kafka_flip.source.kafka_source import KafkaSource

# A condition of a table that waits for new records waits for ever if nobody looks at the topic.
_OBSERVED_BY_DEFAULT = AutomationCondition.on_cron("*/5 * * * *")
# Attributes with placeholders that decide between one asset and one per topic.
_BY_TOPIC = ("table", "name", "key")
# Attributes that are not options of kafka_delta_asset.
_OWN = frozenset({"checks", "maintenance", "observe_topics", "connection"})


_Options = options_of(
    kafka_delta_asset,
    AssetOptions,
    attributes.OPTIONS,
    source="What to read, as the fields of a KafkaSource.",
    table="A path or a catalog name, or the fields of a DeltaTarget. `{topic}` is replaced by the topic, `{name}` by "
    "the topic as a valid name.",
    name="The asset's name. Default: the folder's name; with an asset for each topic, `{name}`.",
    description="The asset's description.",
)


@scaffold_with(KafkaDeltaScaffolder)
class KafkaDeltaComponent(CheckedComponent, _Options):
    """Ingests Kafka topics into Delta tables, exactly once, in bounded batches.

    One asset for all topics of the source, or, with `{topic}` or `{name}` in table, name or key, one per topic. The
    attributes are the options of kafka_delta_asset and AssetOptions.
    """

    settings_of: ClassVar[Mapping[str, type[BaseModel]]] = {"table": DeltaTarget, "limits": Limits}

    checks: attributes.ChecksAttribute | None = Field(
        default=None, description="Options of kafka_delta_checks; {} for its default checks. Default: no checks."
    )
    maintenance: attributes.MaintenanceAttribute | None = Field(
        default=None,
        description="Options of kafka_delta_maintenance, for an asset that runs OPTIMIZE and VACUUM on the table; {} "
        "for its defaults. Default: no maintenance.",
    )
    observe_topics: attributes.TopicsAttribute = Field(
        default=True,
        description="Whether to define observable assets for the source's topics, or their options (of several "
        "components, the first one's). Default: yes.",
    )
    connection: KafkaResourceAttribute | None = Field(
        default=None,
        description="Connection to look up a pattern's topics, for an asset per topic. "
        "Default: the KafkaResource of the project's KafkaResourcesComponent.",
    )

    _built: Any = PrivateAttr(default=())
    _tables: Any = PrivateAttr(default_factory=dict)

    def get_asset_spec(self, spec: AssetSpec, source: KafkaSource) -> AssetSpec:
        """Customizes the asset spec in subclasses; all fields except dependencies and partitions can change.

        Args:
            spec: The spec from the attributes.
            source: The asset's source, with one topic if there is one asset per topic.

        Returns:
            The spec, changed with `replace_attributes` or `merge_attributes`, or unchanged.
        """
        del source
        return spec

    def transform(self, records: Any) -> Any:
        """Transforms records in subclasses; the method may also take `context`, and resources by key.

        Args:
            records: A lazy Spark DataFrame of the run's records.

        Returns:
            The rows to write, a DataFrame. Default: the records as decoded.
        """
        return records

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Builds the assets with their checks, and their topics as observable assets.

        Raises:
            ConfigurationError: Attributes contradict each other; the message names file and line.
        """
        try:
            self._built = self._assets(context)
            self._check_alone(context)
            assets = [*self._topic_assets(context), *self._built, *self._maintenance(context)]
            options = self.checks
            checks = (
                [] if options is None else [one for each in self._built for one in kafka_delta_checks(each, **options)]
            )
        except KafkaFlipError as error:
            raise placed(error, context) from None
        return Definitions(assets=assets, asset_checks=checks, schedules=self._schedules(context))

    def topics(self, context: ComponentLoadContext) -> tuple[str, ...] | None:
        """The topics with one asset each; None if all share one asset.

        Raises:
            ConfigurationError: The source has a pattern, but there is no Kafka connection.
            TopicNotFoundError: No topic matches the pattern.
            ClusterUnreachableError: No broker answered.
        """
        if not any(has_topic(getattr(self, name)) for name in _BY_TOPIC):
            return None
        connection = self.connection
        if connection is None and self.source.topic_pattern is not None and self.source.connection is None:
            connection = next(
                (
                    each.kafka
                    for each in context.component_tree.get_all_components(KafkaResourcesComponent)
                    if each.kafka_key == (self.kafka or "kafka") and each.kafka is not None
                ),
                None,
            )
            if connection is None:
                raise ConfigurationError(
                    f"the topics that match {self.source.topic_pattern!r} are looked up when definitions are loaded, "
                    f"but no KafkaResourcesComponent of the project has the resource {self.kafka or 'kafka'!r}: set "
                    "connection, or list the topics in the source"
                )
        return matching_topics(self.source, connection)

    def _options(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in type(self).model_fields if name in _OPTIONS}
        return {name: value for name, value in given.items() if value is not None}

    def _assets(self, context: ComponentLoadContext) -> list[AssetsDefinition]:
        options = self._options()
        topics = self.topics(context)
        if topics is not None:
            del options["source"]
            return assets_by_topic(self._asset, self.source, topics, options)
        if self.name is None and self.key is None:
            options["name"] = re.sub(r"[^A-Za-z0-9_]", "_", context.path.name.removesuffix(".py"))
        return [self._asset(**options)]

    def _asset(self, *, source: KafkaSource, **options: Any) -> AssetsDefinition:
        own = type(self).transform
        if own is KafkaDeltaComponent.transform:
            make = partial(build_kafka_delta_asset, source=source)
        else:
            options.setdefault("description", inspect.cleandoc(own.__doc__ or "") or f"Records from Kafka: {source}.")
            make = partial(_landing, self.transform, source=source)
        assets_def = make(**options)
        spec = assets_def.specs_by_key[assets_def.key]
        changed = self.get_asset_spec(spec, source)
        if changed is spec:
            return assets_def
        if changed.key != spec.key:
            renamed: dict[str, Any] = {**options, "name": None, "key_prefix": None, "key": changed.key}
            assets_def = make(**renamed)
        return assets_def.map_asset_specs(lambda _: changed)

    def _check_alone(self, context: ComponentLoadContext) -> None:
        self._tables = by_table({key: made for each in self._built for key, made in ingestions_of(each).items()})
        # Works in either build order of the two.
        for component in self._every(context):
            check_streams(self._tables, component._tables)  # noqa: SLF001 - of this class, too

    def _maintenance(self, context: ComponentLoadContext) -> Iterator[AssetsDefinition]:
        """The maintenance of each table; its options may name the topic of its asset."""
        if self.maintenance is None:
            return
        by_topic = self.topics(context) is not None
        for each in self._built:
            source = ingestions_of(each)[each.key].source
            options = filled(self.maintenance, source.subscription.named_topics[0]) if by_topic else self.maintenance
            yield kafka_delta_maintenance(each, **options)

    def _topic_assets(self, context: ComponentLoadContext) -> list[AssetsDefinition]:
        """The topics' assets: those of all components with the same client are in the first one, as one step."""
        readers: dict[AssetKey, list[KafkaDeltaComponent]] = {}
        for each in self._every(context):
            for key in each.observed(context):
                readers.setdefault(key, []).append(each)
        if not self._lists_topics(context):
            mine = {key: _topic_options(key, found) for key, found in readers.items() if found[0] is self}
            return [observable_topics(self.source, self._kafka, mine)] if mine else []
        alike = {
            key: found
            for key, found in readers.items()
            if found[0]._lists_topics(context) and found[0]._client == self._client  # noqa: SLF001 - of this class, too
        }
        if next((found[0] for found in alike.values()), None) is not self:
            return []
        # Whole topics, also if this component reads some partitions of one: others may wait for the rest.
        one = {
            "topics": tuple(key.path[-1] for key in alike),
            "topic_pattern": None,
            "partitions": None,
            "starting_offsets": OffsetsInitializer.earliest(),
            "stopping_offsets": OffsetsInitializer.latest(),
        }
        options = {key: _topic_options(key, found) for key, found in alike.items()}
        return [observable_topics(self.source.model_copy(update=one), self._kafka, options)]

    def _schedules(self, context: ComponentLoadContext) -> list[ScheduleDefinition]:
        cron = self.observe_topics.get("schedule") if isinstance(self.observe_topics, Mapping) else None
        if cron is None:
            return []
        name = f"observe_topics_of_{self._built[0].key.to_python_identifier()}"
        return [
            ScheduleDefinition(name=name, cron_schedule=cron, target=AssetSelection.assets(*self.observed(context)))
        ]

    def observed(self, context: ComponentLoadContext) -> Sequence[AssetKey]:
        """Keys of the topics that this component observes, unless an earlier component does."""
        if self.observe_topics is False:
            return ()
        topics = self.topics(context)
        return upstream_asset_keys(self.source if topics is None else self.source.only(topics), self._kafka)

    def _lists_topics(self, context: ComponentLoadContext) -> bool:
        """Whether the topics can be observed together with those of others."""
        return self.source.topic_pattern is None or self.topics(context) is not None

    @property
    def _kafka(self) -> str:
        return self.kafka or "kafka"

    @property
    def _client(self) -> tuple[Any, ...]:
        """What a client that observes the topics depends on."""
        source = self.source
        config = source.librdkafka_config()
        return self._kafka, source.cluster, source.connection, source.isolation_level, config

    def _every(self, context: ComponentLoadContext) -> list[KafkaDeltaComponent]:
        every = context.component_tree.get_all_components(KafkaDeltaComponent)
        return every if any(each is self for each in every) else [*every, self]


_OPTIONS = frozenset(KafkaDeltaComponent.model_fields) - _OWN


def _landing(transform: Callable[..., Any], **options: Any) -> AssetsDefinition:
    return kafka_delta_asset(**options)(transform)


def _topic_options(key: AssetKey, readers: Sequence[KafkaDeltaComponent]) -> Any:
    """A topic's options, of each the one of the first component that has it."""
    given: dict[str, Any] = {"group_name": readers[0].group_name}
    for each in reversed(readers):
        given |= each.observe_topics if isinstance(each.observe_topics, Mapping) else {}
    conditions = [each.automation_condition for each in readers if each.automation_condition is not None]
    if given.pop("schedule", None) is None and conditions:
        # `on_cron` counts what was found since its tick: an observation before it would find the news away.
        labels = {each.get_label() or "" for each in conditions}
        is_on_cron = len(labels) == 1 and labels.pop().startswith("on_cron(")
        given.setdefault("automation_condition", conditions[0] if is_on_cron else _OBSERVED_BY_DEFAULT)
    return filled(given, key.path[-1])
