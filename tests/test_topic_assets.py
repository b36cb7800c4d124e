"""One asset for each topic: of a list, and of a pattern whose topics are those of the moment of loading."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, Definitions

from dagster_kafka_flip import (
    DeadLetters,
    DeltaTarget,
    JsonFormat,
    KafkaResource,
    KafkaSource,
    SparkResource,
    build_kafka_delta_assets,
    kafka_topic_asset,
    matching_topics,
    topic_asset_key,
)
from dagster_kafka_flip.assets.registry import ingestions_of
from dagster_kafka_flip.errors import ConfigurationError, TopicNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from dagster import AssetsDefinition

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion

TOPICS = KafkaSource(topics=("orders", "payments.eu"))


def landing(assets_def: AssetsDefinition) -> Ingestion:
    """What an asset lands."""
    return ingestions_of(assets_def)[assets_def.key]


def test_each_topic_gets_an_asset_a_table_and_lineage_of_its_own():
    assets = build_kafka_delta_assets(source=TOPICS, table="lake.{name}", key_prefix="landed")

    assert [asset.key for asset in assets] == [AssetKey(["landed", "orders"]), AssetKey(["landed", "payments_eu"])]
    assert [landing(asset).target.table for asset in assets] == ["lake.orders", "lake.payments_eu"]
    assert [landing(asset).source.topics for asset in assets] == [("orders",), ("payments.eu",)]
    assert [set(asset.asset_deps[asset.key]) for asset in assets] == [
        {topic_asset_key("orders")},
        {topic_asset_key("payments.eu")},
    ]
    defs = Definitions(
        assets=[kafka_topic_asset(TOPICS), *assets],
        resources={"kafka": KafkaResource(bootstrap_servers="127.0.0.1:1"), "spark": SparkResource()},
    )
    Definitions.validate_loadable(defs)


def test_a_topic_with_dots_stays_one_part_of_a_catalog_name():
    for table, expected in (("lake.{topic}", "lake.`payments.eu`"), ("lake.`raw_{topic}`", "lake.`raw_payments.eu`")):
        _, eu = build_kafka_delta_assets(source=TOPICS, table=table, dead_letter=f"{table}_rejected")
        assert landing(eu).target.table == expected
        assert len(landing(eu).target.name_parts) == 2
    _, eu = build_kafka_delta_assets(source=TOPICS, table="lake/{topic}")
    assert landing(eu).target.table == "lake/payments.eu"


@pytest.mark.parametrize("name", ["../../x", "..", "a/b", "a`b", ""])
def test_a_name_that_no_topic_can_have_goes_into_no_path(name):
    source = TOPICS.model_copy(update={"topics": (name,)})
    with pytest.raises(ConfigurationError, match="a name that Kafka does not allow"):
        build_kafka_delta_assets(source=source, table="lake/{topic}", topics=[name])


def test_the_topic_is_filled_into_every_option_that_holds_text():
    first, second = build_kafka_delta_assets(
        source=TOPICS,
        table=DeltaTarget(table="lake/{topic}", stream="of-{topic}", cluster_by=("n",)),
        key=["landed", "{topic}"],
        dead_letter=DeadLetters(table="lake/rejected", stream="{topic}", max_records=7),
        description="The topic {topic}.",
        tags={"topic": "{topic}"},
        metadata={"braces": '{"topic": 1}', "runbook": "https://wiki/{topic}", "table": "", "dead_letter": "{topic}"},
        value_format=JsonFormat("n INT"),
    )
    ingestion, spec = landing(first), first.specs_by_key[first.key]

    assert ingestion.target == DeltaTarget(table="lake/orders", stream="of-orders", cluster_by=("n",))
    assert ingestion.dead_letter == DeadLetters(table="lake/rejected", stream="orders", max_records=7)
    assert first.key == AssetKey(["landed", "orders"])
    assert spec.description == "The topic orders."
    assert spec.tags["topic"] == "orders"
    assert spec.metadata["runbook"] == "https://wiki/orders"
    assert spec.metadata["braces"] == '{"topic": 1}'
    # Only the option is the name of a table, in which a topic with a dot is quoted.
    assert spec.metadata["table"] == ""
    assert second.specs_by_key[second.key].metadata["dead_letter"] == "payments.eu"


def test_only_the_topics_that_are_named_get_an_asset():
    pattern = KafkaSource(topic_pattern="orders.*")

    (asset,) = build_kafka_delta_assets(source=pattern, table="lake/{topic}", topics=["orders-eu"])

    assert landing(asset).source == pattern.only(["orders-eu"])
    with pytest.raises(ConfigurationError, match=", not payments"):
        build_kafka_delta_assets(source=pattern, table="lake/{topic}", topics=["payments"])


@pytest.mark.parametrize(
    ("topics", "options", "message"),
    [
        (("a.b", "a_b"), {"table": "lake/{topic}"}, r"a\.b and a_b would have the same asset a_b"),
        (("a.b", "a-b"), {"table": "lake/{topic}", "key": "{topic}"}, r"a-b and a\.b would have the same asset a_b"),
        (("a", "b"), {"table": "lake/all"}, r"a and b would have the same table and stream \S+lake/all \(main\)"),
        (("a", "b"), {"table": "lake/{topic}", "name": "one"}, "a and b would have the same asset one"),
        (("a", "b"), {"table": "lake/{topic}", "dead_letter": "bad"}, "a and b would have the same dead-letter table"),
    ],
)
def test_two_topics_that_would_have_the_same_asset_or_table_are_both_named(topics, options, message):
    with pytest.raises(ConfigurationError, match=message):
        build_kafka_delta_assets(source=KafkaSource(topics=topics), **options)


def test_a_pattern_without_an_address_says_what_is_missing():
    with pytest.raises(ConfigurationError, match=r"set connection=, or list the topics with topics="):
        build_kafka_delta_assets(source=KafkaSource(topic_pattern="a.*"), table="lake/{topic}")


@pytest.mark.kafka
def test_a_pattern_that_nothing_matches_is_an_error(connection, topic):
    with pytest.raises(TopicNotFoundError, match="correct the pattern"):
        matching_topics(KafkaSource(topic_pattern=f"{topic}-.*"), connection)


_LOAD = """
import json, sys
from dagster._core.code_pointer import CodePointer
from dagster._core.definitions.reconstruct import (
    initialize_repository_def_from_pointer,
    reconstruct_repository_def_from_pointer,
)
from dagster._serdes import deserialize_value, serialize_value

pointer = CodePointer.from_python_file(sys.argv[1], "defs", None)
if len(sys.argv) > 2:
    repository = reconstruct_repository_def_from_pointer(pointer, deserialize_value(sys.argv[2]))
else:
    repository = initialize_repository_def_from_pointer(pointer)
keys = sorted(key.to_user_string() for key in repository.asset_graph.get_all_asset_keys())
print(json.dumps([keys, serialize_value(repository.repository_load_data)]))
"""


def _loaded(code: Path, *known: str) -> tuple[set[str], str]:
    """What a process that loads a code location finds, and what it hands on to the processes of a run.

    With what the code server handed on, it is such a process.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LOAD, str(code), *known], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    keys, load_data = json.loads(done.stdout)
    return set(keys), load_data


@pytest.mark.kafka
def test_a_topic_that_comes_up_while_runs_go_on_does_not_change_their_definitions(kafka, broker, topic, tmp_path):
    kafka.create(f"{topic}-a")
    code = tmp_path / "code_location.py"
    code.write_text(
        textwrap.dedent(f"""
            from dagster import Definitions
            from dagster_kafka_flip import *

            kafka = KafkaResource(bootstrap_servers="{broker}")
            source = KafkaSource(topic_pattern="{topic}-.*")
            defs = Definitions(
                assets=[
                    kafka_topic_asset(source.only(matching_topics(source, kafka))),
                    *build_kafka_delta_assets(source=source, table="lake/{{topic}}", key="{{topic}}", connection=kafka),
                ],
                resources={{"kafka": kafka, "spark": SparkResource()}},
            )
        """)
    )

    by_the_code_server, handed_on = _loaded(code)
    assert by_the_code_server == {f"{topic}-a", f"kafka/{topic}-a"}
    kafka.create(f"{topic}-b")
    in_a_run, handed_on_again = _loaded(code, handed_on)
    in_its_step, _ = _loaded(code, handed_on_again)
    assert by_the_code_server == in_a_run == in_its_step

    after_a_reload, _ = _loaded(code)
    assert after_a_reload - by_the_code_server == {f"{topic}-b", f"kafka/{topic}-b"}
