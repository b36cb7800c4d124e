"""DeltaTarget: paths, catalog names, and what can't be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.table.target import DeltaTarget


@pytest.mark.parametrize(
    ("table", "identifier", "uri", "text"),
    [
        ("/lake/flights", "delta.`/lake/flights`", "file:///lake/flights", "/lake/flights"),
        ("/lake/two words", "delta.`/lake/two words`", "file:///lake/two%20words", "/lake/two words"),
        ("/lake/a`b", "delta.`/lake/a``b`", "file:///lake/a%60b", "/lake/a`b"),
        ("file:/lake/flights", "delta.`/lake/flights`", "file:///lake/flights", "/lake/flights"),
        ("file:///lake/flights", "delta.`/lake/flights`", "file:///lake/flights", "/lake/flights"),
        ("s3a://bucket/flights", "delta.`s3a://bucket/flights`", "s3a://bucket/flights", "s3a://bucket/flights"),
        ("hdfs://n:9/x", "delta.`hdfs://n:9/x`", "hdfs://n:9/x", "hdfs://n:9/x"),
        ("delta.`/lake/x`", "delta.`/lake/x`", "file:///lake/x", "/lake/x"),
        ("//lake/x", "delta.`/lake/x`", "file:///lake/x", "/lake/x"),
        ("delta.`//lake/x`", "delta.`/lake/x`", "file:///lake/x", "/lake/x"),
        ("/lake/../lake/x/", "delta.`/lake/x`", "file:///lake/x", "/lake/x"),
        ("flights", "`flights`", None, "flights"),
        ("lake.flights", "`lake`.`flights`", None, "lake.flights"),
        ("spark_catalog.lake.flights", "`spark_catalog`.`lake`.`flights`", None, "spark_catalog.lake.flights"),
        ("`lake`.`flights-2013`", "`lake`.`flights-2013`", None, "`lake`.`flights-2013`"),
        ("`my.lake`.flights", "`my.lake`.`flights`", None, "`my.lake`.flights"),
        ("lake.`odd``name`", "`lake`.`odd``name`", None, "lake.`odd``name`"),
        ("lake.odd`name", "`lake`.`odd``name`", None, "lake.odd`name"),
    ],
)
def test_a_table_is_named_by_a_path_or_in_a_catalog(table, identifier, uri, text):
    target = DeltaTarget(table=table)
    assert (target.identifier, target.uri, str(target)) == (identifier, uri, text)
    assert target.is_path == (uri is not None)
    assert (target.local_path is None) == (uri is None or not uri.startswith("file:"))


def test_a_relative_path_is_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = DeltaTarget(table="warehouse/flights")
    assert target.local_path == tmp_path / "warehouse" / "flights"
    assert target.location == str(target) == str(tmp_path / "warehouse" / "flights")
    assert DeltaTarget(table="./flights").local_path == Path(tmp_path / "flights")


@pytest.mark.parametrize(
    "spellings",
    [
        ("{0}/lake/t", "{0}/lake/t/", "{0}/lake/../lake/./t", "file:{0}/lake/t", "file://{0}/lake//t", "lake/t"),
        ("{0}/lake/t", "{0}/link/t", "delta.`{0}/lake/t`", "DELTA.`{0}/link/t/`"),
        ("s3a://b/x/t", "s3://b/x/t/", "s3n://b//x/y/../t", "S3A://b/x/./t", "delta.`s3a://b/x/t`"),
        ("hdfs://n:9/x", "hdfs://n:9/x/"),
        ("lake.t", "LAKE.T", "`lake`.`t`", "spark_catalog.lake.t"),
        ("t", "default.t", "`T`"),
        ("`my.lake`.t", "`My.Lake`.`t`"),
    ],
)
def test_one_table_has_one_identity_however_it_is_spelled(spellings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    targets = [DeltaTarget(table=spelling.format(tmp_path)) for spelling in spellings]
    assert len({target.identity for target in targets}) == 1


def test_different_tables_have_different_identities():
    tables = ("/a/b", "/a/B", "a.b", "`a.b`", "c.a.b", "s3a://x/a", "s3a://y/a", "gs://x/a", "/a/b/c", "hdfs:/a/b")
    assert len({DeltaTarget(table=table).identity for table in tables}) == len(tables)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"table": ""}, "table: empty"),
        (
            {"table": "lake/t\nx"},
            "the table 'lake/t\\nx' contains an invisible character, such as a newline; remove it",
        ),
        (
            {"table": "~/lake/t"},
            (
                "the table '~/lake/t' begins with ~, which only a shell expands; write the full path, or "
                "./~ for a folder of that name"
            ),
        ),
        *(
            (
                {"table": table},
                "the table begins with file:, but has no absolute path; write it like file:///srv/lake/orders",
            )
            for table in ("file:lake/t", "file://host/lake/t", "delta.`file://localhost/lake/t`")
        ),
        ({"stream": ""}, "invalid stream id '': use 1 to 100 letters, digits, '.', '_' and '-'"),
        ({"stream": "a/b"}, "invalid stream id 'a/b': use 1 to 100 letters, digits, '.', '_' and '-'"),
        ({"stream": "x" * 101}, f"invalid stream id {'x' * 101!r}: use 1 to 100 letters, digits, '.', '_' and '-'"),
        ({"stream": "a\n"}, "invalid stream id 'a\\n': use 1 to 100 letters, digits, '.', '_' and '-'"),
        (
            {"partition_by": ("a",), "cluster_by": ("b",)},
            "a Delta table can have partition columns or clustering columns, not both",
        ),
        ({"partition": ("a",)}, "partition: unknown field; did you mean partition_by?"),
    ],
)
def test_a_target_that_can_not_be_is_refused(values: dict[str, Any], message: str):
    given: dict[str, Any] = {"table": "t", **values}
    with pytest.raises(ConfigurationError) as error:
        DeltaTarget(**given)
    assert str(error.value) == f"invalid DeltaTarget: {message}"


def test_the_transaction_id_is_the_streams_and_nothing_elses():
    assert DeltaTarget(table="a", stream="s-1").transaction_id == "dagster-kafka-flip/s-1"
    assert DeltaTarget(table="b", stream="s-1").transaction_id == "dagster-kafka-flip/s-1"
    assert DeltaTarget(table="a").transaction_id == "dagster-kafka-flip/main"
