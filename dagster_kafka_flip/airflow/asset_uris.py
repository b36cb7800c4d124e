"""Airflow's assets of topics and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import Asset

from dagster_kafka_flip.airflow.given import check_absolute, check_conn_id, is_template
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.source.kafka_source import KafkaSource


def topic_asset(topic: str, kafka_conn_id: str = "kafka_default", *, server: str | None = None) -> Asset:
    """Returns the asset of a topic: `kafka://<connection id>/<topic>`, or with a server `kafka://<server>/<topic>`.

    The connection's id identifies the cluster, because its addresses are not known while a DAG is parsed. With the
    server, the asset is that of Airflow's provider for Kafka: give it to an operator as inlet or outlet.

    Args:
        topic: The topic.
        kafka_conn_id: Id of the Kafka connection.
        server: Host and port of a bootstrap server, as other DAGs name the topic's asset. Default: the connection's id.

    Raises:
        ConfigurationError: One of them is not a string, or is empty.
    """
    expect("topic", topic, str, '"orders"')
    check_conn_id(kafka_conn_id)
    if server is not None:
        expect("server", server, str, '"broker-1:9092"')
        if not server or "/" in server:
            raise ConfigurationError(f"server: {server!r} is not a host and port, such as broker-1:9092")
        return Asset(uri=f"kafka://{server}/{quote(topic)}")
    return Asset(name=f"{kafka_conn_id}/{topic}", uri=f"kafka://{quote(kafka_conn_id)}/{quote(topic)}")


def topic_asset_in(given: Iterable[Asset], topic: str, kafka_conn_id: str) -> Asset:
    """The user's own asset of a topic, by whatever server; else ours."""
    own = topic_asset(topic, kafka_conn_id)
    named = [asset for asset in given if is_topic_asset(asset) and asset.uri.endswith(f"/{quote(topic)}")]
    # One by another connection's id is another cluster's.
    others = [asset for asset in named if "://" in asset.name or not asset.name.endswith(f"/{topic}")]
    return own if own in named or not others else others[0]


def table_asset(table: DeltaTarget | str) -> Asset:
    """Returns the asset of a table: its URI, or `delta://catalog/schema/table` for a table of a catalog.

    Every spelling of a path or a name gives the same asset.

    Args:
        table: The table.

    Raises:
        ConfigurationError: It is a relative path, or contains a template.
    """
    target = DeltaTarget.of(table)
    check_absolute(target)
    if is_template(target.table):
        msg = f"the table {target} is a template, so its asset is unknown before a run: set `outlets`"
        raise ConfigurationError(msg)
    if target.local_path is not None:
        # Not its identity: what links lead to may differ between the hosts that parse DAGs and those that run tasks.
        return Asset(name=str(target.local_path), uri=target.local_path.as_uri())
    identity = target.identity
    uri = identity if target.is_path else "delta://" + "/".join(quote(part) for part in identity.split("."))
    return Asset(name=identity, uri=uri)


def is_topic_asset(asset: object) -> bool:
    """Whether an outlet is the asset of a topic."""
    return isinstance(asset, Asset) and asset.uri.startswith("kafka://")


def is_table_asset(asset: object) -> bool:
    """Whether an outlet is the asset of a table, and not another one of the user's."""
    try:
        return isinstance(asset, Asset) and table_asset(asset.name) == asset
    except ConfigurationError:
        return False


def known_topics(source: KafkaSource) -> tuple[str, ...]:
    """Returns a source's topics; none for a pattern, whose topics are only known in a run."""
    return source.subscription.named_topics
