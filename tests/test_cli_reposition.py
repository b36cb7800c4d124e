"""`dagster-kafka-flip position set` and `reset`, on a real table and a real topic."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance, materialize

from dagster_kafka_flip import DeltaTarget, KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset, ingest
from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.errors import StreamOverlapError, TableReplacedError
from tests import landed
from tests.reports import report

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def run(*arguments: str, code: int = 0, input_: str | None = None, **env: str | None) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_kafka_flip.cli.options.is_terminal", lambda: True)
        finished = CliRunner().invoke(main, ["position", *arguments], input=input_, env=env)
    assert finished.exit_code == code, finished.output
    return finished.output


@pytest.fixture
def source(kafka, topic):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [(None, "x")] * 5)
    kafka.produce(topic, [(None, "x")] * 3, partition=1)
    return KafkaSource(topics=(topic,))


@pytest.fixture
def land(source, connection, spark_of, table):
    return lambda **options: ingest(source, table, spark=spark_of, connection=connection, **options)


@pytest.fixture
def where(broker, table):
    """The options that name the stream."""
    return ("--table", table, "--bootstrap-servers", broker, "--reason", "a test")


def _offsets(table):
    return landed.rows(table, "kafka_partition", "kafka_offset")


def _newest(spark, table):
    return spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").first()


def test_offsets_move_what_they_name_and_the_reason_is_in_the_history(spark, land, where, topic, table):
    land()
    to = json.dumps({topic: {"0": 3}})
    output = run("set", "--to", f"offsets:{to}", *where, "--yes")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "without_the_move runs continue from the old position" in lines
    assert "read_again up to 2 records" in lines
    assert "skipped up to 0 records" in lines
    assert f"{topic}-0 5 3 2" in lines
    assert f"{topic}-1 3 3" in lines
    assert f"The position is set in version 2 of {table}." in lines
    assert "Run once with verify: true, or use --asset." in output
    document = json.loads(_newest(spark, table)["userMetadata"])
    assert (document["reason"], document["state"]["position"]) == ("a test", {topic: [3, 3]})
    assert land().rows == 2
    assert _offsets(table) == sorted([(0, n) for n in (0, 1, 2, 3, 3, 4, 4)] + [(1, n) for n in range(3)])


def test_a_topic_that_one_stream_gives_up_another_one_goes_on_with(
    kafka, spark, connection, spark_of, where, topic, table
):
    kept, given = f"{topic}-kept", f"{topic}-given"
    for name in (kept, given):
        kafka.create(name)
        kafka.produce(name, [(None, "x")] * 3)

    def land(stream, *topics):
        return ingest(
            KafkaSource(topics=topics), DeltaTarget(table=table, stream=stream), spark=spark_of, connection=connection
        )

    land("main", kept, given)
    with pytest.raises(StreamOverlapError, match="remove the topic from that source and give up its position"):
        land("other", given)
    # The topic is out of the source, and the position is kept all the same: nobody has said that it is given up.
    land("main", kept)
    with pytest.raises(StreamOverlapError, match=r"the stream 'main' .* reads it already"):
        land("other", given)
    to = ("--to", "offsets:" + json.dumps({given: {"0": 3}}), "--stream", "other", "--topic", given)
    assert "reads it already" in run("set", *to, *where, "--yes", code=1)

    still = run("set", "--give-up", *where, "--topic", kept, "--topic", given, "--yes", code=2)
    assert "nothing to give up" in " ".join(still.split())
    output = run("set", "--give-up", *where, "--topic", kept, "--yes")
    assert "must begin at the old offset" in output
    assert f"{given}-0 3" in [" ".join(line.split()) for line in output.splitlines()]
    assert json.loads(_newest(spark, table)["userMetadata"])["state"]["position"] == {kept: [3]}

    run("set", *to, *where, "--yes")
    kafka.produce(given, [(None, "y")])
    assert (land("other", given).rows, land("main", kept).is_idle) == (1, True)
    assert landed.count(table) == 7


def test_a_dry_run_and_a_no_change_nothing(spark, land, where, table):
    land()
    before = _newest(spark, table)["version"]
    assert "Nothing was changed (--dry-run)." in run("set", "--to", "earliest", *where, "--dry-run")
    assert "Aborted!" in run("set", "--to", "earliest", *where, input_="n\n", code=1)
    assert _newest(spark, table)["version"] == before
    assert land().is_idle
    assert "The position is set" in run("reset", *where, input_="y\n")
    assert land().rows == 8


def test_each_way_to_say_where_to(kafka, land, where, topic):
    land()
    kafka.commit_offsets(topic, topic, {0: 2, 1: 2})
    for to, rows in (("latest", 0), ("timestamp:2001-01-01T00:00:00Z", 8), ("committed", 4)):
        run("set", "--to", to, *where, "--group-id", topic, "--yes")
        assert land().rows == rows, to


def test_a_position_that_a_restore_has_undone_is_not_kept(kafka, spark, land, where, topic, table):
    land()
    kafka.produce(topic, [(None, "y")])
    kafka.produce(topic, [(None, "y")], partition=1)
    land()
    spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 1")
    spark.sql(f"DELETE FROM delta.`{table}`")
    with pytest.raises(TableReplacedError):
        land()
    to = f"offsets:{json.dumps({topic: {'0': 0}})}"
    refused = run("set", "--to", to, *where, "--yes", code=1)
    assert f"so the position of {topic}-1 is unknown. Nothing was changed." in " ".join(refused.split())
    run("set", "--to", f"offsets:{json.dumps({topic: {'0': 0, '1': 3}})}", *where, "--yes")
    assert land().rows == 6 + 1


def test_moving_the_position_makes_dagsters_record_void(
    kafka, broker, spark, source, topic, table, tmp_path, monkeypatch
):
    home = tmp_path / "dagster-home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    definitions = tmp_path / "definitions.py"
    definitions.write_text(
        "from dagster import Definitions\n"
        "from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset\n"
        f"landed = build_kafka_delta_asset(name='landed', source=KafkaSource(topics=({topic!r},)), table={table!r})\n"
        f"defs = Definitions(assets=[landed], resources={{'kafka': KafkaResource(bootstrap_servers={broker!r}), "
        "'spark': SparkResource()})\n",
        encoding="utf-8",
    )
    landed = build_kafka_delta_asset(name="landed", source=source, table=table)
    resources = {"kafka": KafkaResource(bootstrap_servers=broker), "spark": SparkResource()}

    def materialized():
        with DagsterInstance.get() as instance:
            result = materialize([landed], instance=instance, resources=resources)
        return report(result)

    assert materialized()["delta/rows_written"] == 8
    assert materialized()["spark/started"] is False
    output = run(
        "set", "--to", "earliest", "--reason", "wrong filter", "--yes", "--asset", "landed", "-f", str(definitions)
    )
    assert "Dagster's record of landed is invalidated; the next run reads the table." in output
    again = materialized()
    assert (again["delta/rows_written"], again["spark/started"]) == (8, True)
    assert materialized()["spark/started"] is False, "the new record is believed again"


def test_where_only_a_pool_keeps_writers_apart_a_command_is_told_that_no_run_writes(broker, topic, tmp_path):
    definitions = tmp_path / "definitions.py"
    definitions.write_text(
        "from dagster import Definitions\n"
        "from dagster_kafka_flip import (\n"
        "    DeltaTarget, JsonFormat, KafkaResource, KafkaSource, SparkResource, Upsert, build_kafka_delta_asset\n"
        ")\n"
        f"landed = build_kafka_delta_asset(name='landed', source=KafkaSource(topics=({topic!r},)),\n"
        "    table=DeltaTarget(table='oss://lake/t', single_writer=True, mode=Upsert(key=('id',))),\n"
        "    key_format=JsonFormat(schema='id BIGINT'), value_format=JsonFormat(schema='id BIGINT'))\n"
        f"defs = Definitions(assets=[landed], resources={{'kafka': KafkaResource(bootstrap_servers={broker!r}), "
        "'spark': SparkResource()})\n",
        encoding="utf-8",
    )
    asset = ("--yes", "--asset", "landed", "-f", str(definitions))
    for command in (
        ("position", "set", "--to", "earliest", "--reason", "r", *asset),
        ("position", "reset", "--reason", "r", *asset),
        ("rebuild", "--staging", str(tmp_path / "staging"), *asset),
    ):
        refused, goes_on = (CliRunner().invoke(main, [*command, *more]) for more in ((), ("--runs-stopped",)))
        assert (refused.exit_code, goes_on.exit_code) == (1, 1)
        output = " ".join(refused.output.split())
        assert "keeps runs apart. " in output
        assert ". Stop the runs that write to the table" in output
        # To a store that this Spark does not know.
        assert "--runs-stopped" not in goes_on.output
        assert "oss://lake/t" in goes_on.output


def test_a_missing_table_and_a_missing_group_are_reported(where, source, topic, land):
    finished = run("set", "--to", "earliest", *where, "--topic", topic, "--yes", code=1)
    assert "does not exist yet, so no position can be set" in finished
    land()
    assert "--to committed needs --group-id" in run("set", "--to", "committed", *where, "--yes", code=2)
