"""Tables by name in the catalog of a Hive metastore that is a server, with two users."""

from __future__ import annotations

import shutil

import pytest

from tests import landed
from tests.faults.ingesting import BEFORE_WRITE, PLANNED

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]


@pytest.fixture
def schema_of_three(kafka, owner_and_guest, topic, tmp_path):
    """Makes a schema of the owner, and a topic with three records; returns the schema's folder."""
    owner, _ = owner_and_guest

    def make(name):
        kafka.create(topic)
        _produce(kafka, topic, 3)
        folder = tmp_path / name
        owner.do("sql", statements=[f"CREATE SCHEMA {name} LOCATION '{folder.as_uri()}'"])
        return folder

    return make


def _produce(kafka, topic, count):
    kafka.produce(topic, [(None, "x")] * count)


def test_processes_of_several_users_share_a_table_by_its_name(kafka, owner_and_guest, schema_of_three, topic):
    owner, guest = owner_and_guest
    folder = schema_of_three("open")
    folder.chmod(0o777)
    assert guest.do("land", topic=topic, table="open.flights")["rows"] == 3
    _produce(kafka, topic, 2)
    assert owner.do("land", topic=topic, table="spark_catalog.open.flights")["rows"] == 2
    assert guest.do("land", topic=topic, table="open.flights")["rows"] == 0
    assert landed.values(folder / "flights", "kafka_offset") == list(range(5))


def test_a_right_that_is_missing_in_a_schema_is_named_and_the_log_that_delta_leaves_is_explained(
    owner_and_guest, schema_of_three, topic
):
    owner, guest = owner_and_guest
    folder = schema_of_three("closed")
    folder.chmod(0o755)
    refused = guest.do("land", topic=topic, table="closed.flights")
    assert refused["error"] == "TableError", refused
    assert "the table spark_catalog.closed.flights can't be created" in refused["message"]
    assert "Permission denied: user=guest" in refused["message"]
    assert owner.do("sql", statements=["SHOW TABLES IN closed"])["rows"] == []
    refused = owner.do("land", topic=topic, table="closed.flights")
    assert refused["error"] == "TableError", refused
    assert "its folder has a Delta log without rows: remove the folder" in refused["message"]
    assert landed.count(folder / "flights") == 0
    shutil.rmtree(folder / "flights")
    assert owner.do("land", topic=topic, table="closed.flights")["rows"] == 3
    assert landed.values(folder / "flights", "kafka_offset") == [0, 1, 2]


@pytest.mark.parametrize(
    ("step", "error", "advice"),
    [
        (PLANNED, "TableError", "and this machine's access to its store and catalog, then run again"),
        (BEFORE_WRITE, "CommitUnknownError", "the next run finds it; otherwise it reads the batch again"),
    ],
)
def test_a_metastore_that_dies_during_a_run_ends_it_with_what_to_do_and_the_next_one_continues(
    kafka, metastore, owner_and_guest, schema_of_three, topic, tmp_path, step, error, advice
):
    owner, _ = owner_and_guest
    schema = f"dies_{tmp_path.name}".replace("-", "_")
    folder = schema_of_three(schema)
    order = {"topic": topic, "table": f"{schema}.flights"}

    def dying(step):
        try:
            return owner.do("land", **order, step=step, victim=metastore.pid)
        finally:
            metastore.end()
            metastore.heal()

    # Before the table is made: the schema is there, but can't be asked for.
    refused = dying(PLANNED)
    assert refused["error"] == "TableError", refused
    assert "can't be created" in refused["message"]
    assert "Create the schema" not in refused["message"]
    assert owner.do("land", **order)["rows"] == 3
    _produce(kafka, topic, 2)
    refused = dying(step)
    assert refused["error"] == error, refused
    assert advice in refused["message"]
    assert owner.do("land", **order)["rows"] in (0, 2)
    assert landed.values(folder / "flights", "kafka_offset") == list(range(5))


def test_a_table_whose_folder_was_moved_is_named_and_continues_at_its_new_place(
    kafka, owner_and_guest, schema_of_three, topic, tmp_path
):
    owner, _ = owner_and_guest
    folder = schema_of_three("moving")
    order = {"topic": topic, "table": "moving.flights"}
    assert owner.do("land", **order)["rows"] == 3
    moved = tmp_path / "moved"
    shutil.move(folder / "flights", moved)
    _produce(kafka, topic, 2)
    for _ in range(2):
        refused = owner.do("land", **order)
        assert refused["error"] == "TableError", refused
        assert "Delta finds no table in its folder" in refused["message"]
        # As where nothing is mounted.
        (folder / "flights").mkdir(exist_ok=True)
    owner.do(
        "sql",
        statements=[
            "DROP TABLE `moving`.`flights`",
            f"CREATE TABLE `moving`.`flights` USING delta LOCATION '{moved.as_uri()}'",
        ],
    )
    assert owner.do("land", **order)["rows"] == 2
    assert landed.values(moved, "kafka_offset") == list(range(5))
