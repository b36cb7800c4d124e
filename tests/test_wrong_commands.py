"""What users get wrong on the command line: one line that says what to write. No broker and no Spark is there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.cli.asset import find_asset
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState

# What `@` stands for: an address where nobody is.
_WHERE = "--bootstrap-servers 127.0.0.1:1"
_FILES = {
    "defs.py": """
from dagster import DailyPartitionsDefinition, Definitions, asset
from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset

source = KafkaSource(topics=("a",))
stream = build_kafka_delta_asset(source=source, table="lake/a", name="stream")
daily = build_kafka_delta_asset(
    source=source, table="lake/d", name="daily", partitions_def=DailyPartitionsDefinition("2026-01-01")
)

@asset
def other(): ...

kafka = KafkaResource(bootstrap_servers="127.0.0.1:1", request_timeout=1)
defs = Definitions(assets=[stream, daily, other], resources={"kafka": kafka, "spark": SparkResource()})
""",
    "none.py": "x = 5\n",
    "broken.py": "import nope\n",
    "ending.py": "import sys\nsys.exit(3)\n",
    "typo.py": "from dagster_kafka_flip import build_kafka_delta_asset\nbuild_kafka_delta_asset(sauce=5)\n",
    "data.txt": "x",
}
_FILES["env.py"] = _FILES["defs.py"].replace('"127.0.0.1:1"', '__import__("dagster").EnvVar("NOT_SET")')
_FILES["nores.py"] = _FILES["defs.py"].replace(', resources={"kafka": kafka, "spark": SparkResource()}', "")
_FILES["textres.py"] = _FILES["defs.py"].replace('"kafka": kafka', '"kafka": "a:1"')


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with right and wrong definitions."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    for variable in ("DAGSTER_HOME", "KAFKA_BOOTSTRAP_SERVERS", "NOT_SET"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("plan", 2, "select what to read: --topic, --topic-pattern or --partition, or an asset with --asset"),
        ("plan --topic a", 2, "set --bootstrap-servers or KAFKA_BOOTSTRAP_SERVERS"),
        ("plan --topic a --bootstrap-servers x", 2, "Invalid value for '--bootstrap-servers': invalid KafkaConnection"),
        ('plan --topic "a b" @', 2, "invalid KafkaSource: invalid topic name 'a b': Kafka allows 1 to 249 letters"),
        ("plan --topic a --topic-pattern b @", 2, "select what to read: --topic, --topic-pattern or --partition, or"),
        ("plan --partition a-x @", 2, "Invalid value for '--partition': invalid topic partition 'a-x'"),
        ("plan --topic a --start never @", 2, "Invalid value for '--start': invalid offsets 'never'"),
        ("plan --topic a --start timestamp:1763800000 @", 2, "Invalid value for '--start': timestamp 1763800000 looks"),
        ("plan --topic a --start committed @", 2, "--start committed:none needs --group-id, the group with the"),
        ("plan --topic a --ask-table @", 2, "--ask-table needs an asset; select one with --asset"),
        ("plan --topic a -f defs.py", 2, "-f sets where an asset is defined; select the asset with --asset"),
        ("plan --asset stream -f data.txt", 1, "the definitions in data.txt can't be loaded: Exception: Can not"),
        ("plan --asset nope -f defs.py", 1, "defs.py has no asset nope; assets of this package: daily, stream"),
        (
            "plan --asset other -f defs.py",
            1,
            "other in defs.py was not created by kafka_delta_asset, delta_",
        ),
        ("plan --asset daily -f defs.py", 1, "the asset daily has partitions: a run writes the selected windows and"),
        ("plan --asset stream -f defs.py --topic a", 2, "--topic: already set by the asset; remove it, or"),
        ("plan --asset stream -f env.py", 1, "the resource 'kafka' needs NOT_SET in the environment"),
        (
            "plan --asset stream -f nores.py",
            1,
            "the definitions in nores.py can't be loaded: DagsterInvalidDefinitionError: resource with ke",
        ),
        (
            "plan --asset stream -f none.py",
            1,
            "the definitions in none.py can't be loaded: DagsterInvariantViolationError: No Definitions,",
        ),
        ("plan --asset stream -f broken.py", 1, "the definitions in broken.py can't be loaded: ModuleNotFoundError"),
        ("plan --asset stream -f typo.py", 1, "build_kafka_delta_asset: unknown option sauce; did you mean source?"),
        *(
            (f"{command} --asset daily -f defs.py", 1, "the asset daily has partitions: a run writes the selected wi")
            for command in (
                "position show",
                "position set --to earliest --reason r --dry-run",
                "position reset --reason r --dry-run",
                "rebuild --staging lake/staging --yes",
            )
        ),
        ("position show", 2, "set --table, or select an asset with --asset"),
        ('position show --table ""', 2, "invalid DeltaTarget: table: empty"),
        (
            'position show --table lake/a --stream "a b" --spark-master local',
            2,
            "invalid DeltaTarget: invalid stream id 'a b': use 1 to 100 letters, digits, '.', '_' and '-",
        ),
        ("position show --table lake/a --asset stream -f defs.py", 2, "--table: already set by the asset; remove it"),
        ("position show --table lake/a --spark-remote x", 2, "Invalid value for '--spark-remote': remote is not a"),
        (
            "position show --table lake/a --spark-master local --spark-remote sc://a:1",
            2,
            "--spark-master and --spark-remote can't be combined",
        ),
        ("position set --reason x", 2, "set --to or --give-up"),
        ("position set --table lake/a --reason x --to earliest", 2, "set --bootstrap-servers, or select an asset"),
        ("position reset --reason x", 2, "set --table, or select an asset with --asset"),
        # It has no --dry-run, which the message of other commands suggests.
        ("rebuild --asset stream -f defs.py --staging lake/b", 2, "not a terminal: pass --yes to confirm\n"),
        ("plan --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z", 2, "a range of time needs --asset, --from"),
        ("plan --asset stream --time-column t", 2, "a range of time needs --asset, --from and --to"),
        (
            "plan --asset stream -f defs.py --from 2026-01-01T00Z --to 2026-01-02T00Z --parallelism 2 --ask-table",
            2,
            "--parallelism, --ask-table: not for a range of time",
        ),
        (
            "plan --asset stream -f defs.py --from 2026-01-01 --to 2026-01-02T00:00:00Z",
            2,
            "Invalid value for '--from': the timestamp 2026-01-01T00:00:00 has no UTC offset; write one, s",
        ),
        (
            "plan --asset daily -f defs.py --from 2025-01-01T00:00:00Z --to 2025-01-02T00:00:00Z",
            1,
            "the range from 2025-01-01T00:00:00Z to 2025-01-02T00:00:00Z contains no complete window of the ass",
        ),
        (
            "plan --asset daily -f defs.py --time-column x --from 2026-01-01T00Z --to 2026-01-02T00Z",
            2,
            "--time-column is for a stream, but daily has partitions; its Windows set the window",
        ),
        (
            "plan --asset stream -f broken.py --from soon --to 2026-01-02T00:00:00Z",
            2,
            "Invalid value for '--from': invalid timestamp 'soon'",
        ),
        (
            "broker start --data-dir data.txt",
            2,
            "Invalid value for '--data-dir' (env var: 'DAGSTER_KAFKA_FLIP_BROKER_DIR'): Directory 'data.t",
        ),
        ("spark start --conf fs.s3a.secret.key=hunter2", 2, "write --conf as spark.NAME=VALUE"),
        ("plan --asset stream -f textres.py", 1, "the resource 'kafka': expected KafkaResource, got str"),
        ("position show --table lake/a --spark-master lokal", 2, "Invalid value for '--spark-master': invalid Spark"),
        ("position set --table a/b --reason '' --to earliest @", 2, "--reason is empty"),
        ("position set --table a/b --reason x --to earliest @", 2, "not a terminal: pass"),
        ("plan --asset stream -f ending.py", 1, "the definitions in ending.py can't be loaded: they exit the process"),
    ],
)
def test_a_wrong_command_ends_with_one_line_that_says_what_to_write(command, code, message):
    finished = CliRunner().invoke(main, shlex.split(command.replace(" @", f" {_WHERE}")))
    assert (type(finished.exception), finished.exit_code) == (SystemExit, code), finished.exception
    assert f"Error: {message}" in finished.output
    assert "hunter2" not in finished.output


@pytest.mark.parametrize(
    ("home", "message"), [("/nope", "is not a directory"), ("relative", "must be an absolute path")]
)
def test_a_wrong_home_of_dagster_is_named(home, message):
    finished = CliRunner().invoke(main, ["plan", "--asset", "stream", "-f", "defs.py"], env={"DAGSTER_HOME": home})
    assert finished.exit_code == 1
    assert "Error: the Dagster instance of DAGSTER_HOME can't be opened" in finished.output
    assert message in finished.output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("storage: [", 'ParserError: while parsing a flow node (in "{home}/dagster.yaml", line 1, column 11)'),
        ("", "FileExistsError: [Errno 17] File exists: '{home}/history/'"),
    ],
)
def test_a_home_of_dagster_that_can_not_be_used_is_reported_in_one_line(tmp_path, monkeypatch, settings, message):
    (tmp_path / "dagster.yaml").write_text(settings)
    (tmp_path / "history").write_text("a file")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    why = f"the Dagster instance of DAGSTER_HOME can't be opened: {message.format(home=tmp_path)}"
    finished = CliRunner().invoke(main, ["plan", "--asset", "stream", "-f", "defs.py"])
    assert finished.exit_code == 1
    assert f"Error: {why}\n" in finished.output
    found = find_asset("stream", Path("defs.py"))
    state = EnumeratorState({TopicPartition("a", 0): 1})
    assert f"was not updated, because {why}. Run the asset once" in found.void_record("main", 3, "by hand", state)


def test_a_move_that_dagster_can_not_record_says_so(tmp_path, monkeypatch):
    found = find_asset("stream", Path("defs.py"))
    state = EnumeratorState({TopicPartition("a", 0): 1})
    for home, why in (
        ("", "DAGSTER_HOME is not set. Run the asset once with verify: true"),
        (str(tmp_path / "nope"), "the Dagster instance of DAGSTER_HOME can't be opened"),
    ):
        monkeypatch.setenv("DAGSTER_HOME", home)
        assert f"was not updated, because {why}" in found.void_record("main", 3, "by hand", state)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    # The asset's runs may go on with their record: another stream of the table was moved.
    assert "is of the stream 'main'" in found.void_record("other", 3, "by hand", state)
    assert not list(tmp_path.iterdir())
    assert "is invalidated" in found.void_record("main", 3, "by hand", state)
    moved = found.record().known
    assert moved is not None
    assert (moved.state, moved.table_version) == (state, 3)
