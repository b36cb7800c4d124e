from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dagster_kafka_flip.broker.local_broker import KAFKA_JARS
from dagster_kafka_flip.errors import ConfigurationError, JarDownloadError
from dagster_kafka_flip.runtime import jars, spark_jars
from dagster_kafka_flip.runtime.jars import default_cache_dir, retrieve, retrieve_unpacked

DEAD_PROXY = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https"))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", DEAD_PROXY)


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-java"))


@pytest.fixture
def cache(tmp_path: Path, no_network: None) -> Path:
    """A cache in whose local repository top-1 depends on middle-1 and side-2, and middle-1 on side-1."""
    cache = tmp_path / "cache"
    publish(cache, "top", "1", {"middle": "1", "side": "2"})
    publish(cache, "middle", "1", {"side": "1"})
    publish(cache, "side", "1", {})
    publish(cache, "side", "2", {})
    publish(cache, "other", "1", {})
    return cache


def publish(cache: Path, name: str, version: str, dependencies: dict[str, str]) -> None:
    folder = cache / "ivy" / "local" / "org.example" / name / version
    (folder / "ivys").mkdir(parents=True)
    (folder / "jars").mkdir()
    needed = "".join(
        f'<dependency org="org.example" name="{dependency}" rev="{rev}" conf="default->default"/>'
        for dependency, rev in dependencies.items()
    )
    (folder / "ivys" / "ivy.xml").write_text(
        f'<ivy-module version="2.0"><info organisation="org.example" module="{name}" revision="{version}"/>'
        f'<configurations><conf name="default"/></configurations><publications><artifact name="{name}" conf="default"/>'
        f"</publications><dependencies>{needed}</dependencies></ivy-module>"
    )
    with zipfile.ZipFile(folder / "jars" / f"{name}.jar", "w") as jar:
        jar.writestr("content", f"{name} {version}")


def names(paths: list[Path]) -> list[str]:
    return [path.name.removeprefix("org.example_") for path in paths]


def test_artifacts_come_with_their_dependencies_in_one_set_of_versions(cache: Path):
    found = retrieve(["org.example:top:1", "org.example:other:1"], cache_dir=cache)
    assert names(found) == ["middle-1.jar", "other-1.jar", "side-2.jar", "top-1.jar"]
    assert all(path.is_file() for path in found)


def test_excluded_artifacts_are_left_out_wherever_they_are_needed(cache: Path):
    found = retrieve(["org.example:top:1"], excludes=["*:side"], cache_dir=cache)
    assert names(found) == ["middle-1.jar", "top-1.jar"]


@pytest.mark.kafka
def test_kafka_is_taken_from_the_cache_without_java_or_network(
    no_network: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    first = retrieve(KAFKA_JARS)
    script = (
        "import sys\nfrom dagster_kafka_flip.broker.local_broker import KAFKA_JARS\n"
        "from dagster_kafka_flip.runtime.jars import retrieve\n"
        "print(len(retrieve(KAFKA_JARS))); assert 'pyspark' not in sys.modules"
    )
    without_java = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path), "JAVA_TOOL_OPTIONS": DEAD_PROXY}
    command = [sys.executable, "-c", script]
    finished = subprocess.run(command, check=False, env=without_java, capture_output=True, text=True)
    assert (finished.stdout.strip(), finished.stderr) == (str(len(first)), "")
    assert [path.name for path in first if path.name.startswith("org.apache.kafka_kafka_2.13-")]


def test_a_download_that_was_cut_off_is_not_taken_as_complete(cache: Path, monkeypatch: pytest.MonkeyPatch):
    complete = jars._run_ivy

    def cut_off(*args: Any, work: Path, **options: Any) -> Path:
        complete(*args, work=work, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(jars, "_run_ivy", cut_off)
    with pytest.raises(KeyboardInterrupt):
        retrieve(["org.example:top:1"], cache_dir=cache)
    # What a process that was killed leaves behind.
    left_over = cache / "jars" / "partial-killed" / "jars"
    left_over.mkdir(parents=True)
    monkeypatch.setattr(jars, "_run_ivy", complete)
    found = retrieve(["org.example:top:1"], cache_dir=cache)
    assert names(found) == ["middle-1.jar", "side-2.jar", "top-1.jar"]
    assert [path.name for path in (cache / "jars").iterdir()] == [found[0].parent.name]


def test_two_that_ask_at_the_same_time_download_once(cache: Path, monkeypatch: pytest.MonkeyPatch):
    complete, calls = jars._run_ivy, []

    def counted(*args: Any, **options: Any) -> Path:
        calls.append(args)
        return complete(*args, **options)

    monkeypatch.setattr(jars, "_run_ivy", counted)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: retrieve(["org.example:top:1"], cache_dir=cache), range(2))
    assert first == second
    assert len(calls) == 1


def test_an_unreachable_repository_is_named_with_the_next_step(tmp_path: Path, no_network: None):
    with pytest.raises(JarDownloadError) as raised:
        retrieve(["org.example:nothing:1"], cache_dir=tmp_path)
    message = str(raised.value)
    assert message.startswith("org.example:nothing:1 could not be downloaded: Ivy ended with 1.")
    assert "org.example#nothing;1: not found" in message
    assert "Connection refused" in message
    assert "JAVA_TOOL_OPTIONS" in message
    assert "DAGSTER_KAFKA_FLIP_CACHE" in message
    assert not list((tmp_path / "jars").iterdir())


@pytest.mark.slow
def test_an_older_patch_replaces_a_version_that_can_not_be_downloaded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    # The last of its minor version, and an artifact without dependencies.
    newest, unreleased = "org.slf4j:slf4j-api:1.7.36", "org.slf4j:slf4j-api:1.7.37"
    with pytest.raises(JarDownloadError, match=r"don't have all of them: org\.slf4j:slf4j-api:1\.7\.37\. Correct"):
        retrieve([unreleased], cache_dir=tmp_path)
    for _ in range(2):
        caplog.clear()
        (found,) = retrieve([unreleased], older=[unreleased], cache_dir=tmp_path)
        assert found.name == "org.slf4j_slf4j-api-1.7.36.jar"
        (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
        assert warning.startswith(f"No repository has {unreleased} with all dependencies; using {newest} instead.")
        assert str(found.parent) in warning


def test_a_cache_that_is_full_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Writes what Ivy does on a full disk: the cause, and behind it a stack trace.
    java = tmp_path / "java"
    trace = ["java.io.IOException: No space left on device", *["\tat java.base/java.io.FileOutputStream.write"] * 20]
    java.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in trace), "exit 1"]))
    java.chmod(0o755)
    monkeypatch.setattr(jars, "find_java", lambda: java)
    with pytest.raises(
        JarDownloadError,
        match=rf"could not be written to the cache {cache}: \[Errno 28\] No space left on device: .*make room in it",
    ):
        retrieve(["org.example:new:1"], cache_dir=cache)


@pytest.mark.parametrize(
    "text", ["org.example:name", "org.example::1", "org.example:name:1:jar", "org.example: name:1", ""]
)
def test_a_text_that_is_not_a_coordinate_is_refused(text: str, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="group:artifact:version"):
        retrieve([text], cache_dir=tmp_path)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("DAGSTER_KAFKA_FLIP_CACHE", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"
    monkeypatch.delenv("DAGSTER_KAFKA_FLIP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "dagster-kafka-flip"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "dagster-kafka-flip"


ARCHIVE = "org.example:server:1:all"


def tar(name: str) -> bytes:
    """A tar.gz with one file."""
    packed, text = io.BytesIO(), b"java"
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return packed.getvalue()


def publish_archive(cache: Path, content: bytes = tar("bin/start")) -> None:
    """Publishes server-1, a tar.gz with a file in a folder; or with another content."""
    folder = cache / "ivy" / "local" / "org.example" / "server" / "1"
    (folder / "ivys").mkdir(parents=True)
    (folder / "tar.gzs").mkdir()
    (folder / "ivys" / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="org.example" '
        'module="server" revision="1"/><configurations><conf name="master"/></configurations><publications><artifact '
        'name="server" type="tar.gz" ext="tar.gz" m:classifier="all" conf="master"/></publications></ivy-module>'
    )
    (folder / "tar.gzs" / "server.tar.gz").write_bytes(content)


def test_an_archive_is_unpacked_once(
    tmp_path: Path, no_network: None, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
):
    publish_archive(tmp_path)
    with caplog.at_level("INFO"):
        folder = retrieve_unpacked(ARCHIVE, cache_dir=tmp_path)
    assert [(path.name, path.read_text()) for path in (folder / "bin").iterdir()] == [("start", "java")]
    assert [path.name for path in folder.parent.iterdir()] == ["server-1-all"]
    assert ARCHIVE in caplog.text
    request.getfixturevalue("no_java")
    assert retrieve_unpacked(ARCHIVE, cache_dir=tmp_path) == folder


@pytest.mark.parametrize("content", [b"no archive", tar("../../outside")], ids=["no archive", "a file outside"])
def test_an_archive_that_can_not_be_unpacked_is_named(content: bytes, tmp_path: Path, no_network: None):
    publish_archive(tmp_path, content=content)
    with pytest.raises(JarDownloadError, match=rf"{ARCHIVE} could not be unpacked"):
        retrieve_unpacked(ARCHIVE, cache_dir=tmp_path)
    assert list((tmp_path / "archives").iterdir()) == []
    assert list(tmp_path.rglob("outside")) == []


@pytest.mark.parametrize("text", ["org.example:server:1", "org.example:server:1:", "a:b:c:d:e"])
def test_a_text_that_is_not_an_archive_coordinate_is_refused(text: str, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="group:artifact:version:classifier"):
        retrieve_unpacked(text, cache_dir=tmp_path)


def test_parts_of_amazons_sdk_keep_its_bundle_out_and_what_spark_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def note(_: Any, *, excludes: Any, **__: Any) -> list[Path]:
        asked.append(list(excludes))
        return []

    monkeypatch.setattr(spark_jars, "retrieve", note)
    hadoop, bundle = "org.apache.hadoop:hadoop-aws:3.5.0", "software.amazon.awssdk:bundle"
    for packages, has_bundle in (
        ([], True),
        ([hadoop], True),
        ([hadoop, "software.amazon.awssdk:s3:2.40.2"], False),
        ([hadoop, "software.amazon.awssdk:s3:2.40.2", f"{bundle}:2.24.6"], True),
    ):
        spark_jars.fetch_jars(packages)
        assert (bundle not in asked[-1]) == has_bundle, packages
    assert set(asked[0]) == {f"*:{artifact}" for artifact in spark_jars.brought_by_spark()}


def test_no_jar_of_a_session_is_another_version_of_one_that_spark_brings():
    def artifact(jar: str) -> str:
        return re.sub(r"-\d.*", "", jar)

    own = {artifact(Path(jar).name.partition("_")[2]) for jar in spark_jars.fetch_jars()}
    assert "kafka-clients" in own
    assert own & {artifact(jar) for jar in jars.jars_of_pyspark()} == set()
