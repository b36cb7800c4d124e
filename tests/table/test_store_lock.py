"""Two processes never write to one local table at once, and stores that can't keep them apart are refused."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import pytest

import dagster_kafka_flip.table.store_lock as module
from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.store_lock import store_lock
from dagster_kafka_flip.telemetry import repeatedly

# Reads a number, and writes it back one larger: two of these at once lose some, unless the lock keeps them apart.
_COUNT = """
import sys
from pathlib import Path
from dagster_kafka_flip.table.store_lock import store_lock

location, counter, ready = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
ready.touch()
while len(list(ready.parent.glob("*.ready"))) < 2:
    pass
for _ in range(200):
    with store_lock(location, is_remote=False):
        number = int(counter.read_text())
        counter.write_text("")
        counter.write_text(str(number + 1))
"""


def test_two_processes_exclude_each_other(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    # One knows the table by its path, the other by the URI that a catalog tells.
    locations = (str(tmp_path / "two words"), (tmp_path / "two words").as_uri())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _COUNT, location, str(counter), str(tmp_path / f"{number}.ready")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, location in enumerate(locations)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    assert counter.read_text() == "400"


@pytest.mark.parametrize("table", ["/proc/no-table", "/dev/null/table"])
def test_a_place_where_no_file_can_be_made_is_reported_at_once(table):
    with pytest.raises(TableError, match=f"^the table {table} can't be locked: "), store_lock(table, is_remote=False):
        pass


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Correct this, then run again"),
        (errno.EACCES, "Every user that writes to the table needs write access to the folder {folder}"),
    ],
)
def test_a_lock_that_can_not_be_made_is_followed_by_what_to_do(tmp_path, monkeypatch, number, advice):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "_make", refuse)
    with pytest.raises(TableError) as error, store_lock(str(tmp_path / "table"), is_remote=False):
        pass
    assert str(error.value).endswith(f"{os.strerror(number)}. {advice.format(folder=tmp_path)}")


def test_waiting_for_the_lock_says_where_its_owner_is_shown_and_ends(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(repeatedly, "_SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.5)
    table = str(tmp_path / "table")
    with store_lock(table, is_remote=False):
        with pytest.raises(TableError) as error, store_lock(table, is_remote=False):
            pass
        assert str(error.value).startswith(f"the table {table} has been locked by another process for 0 min")
        assert caplog.messages[0].startswith(f"waiting for 0 s: another process is writing to {table}; fuser ")
    with store_lock(table, is_remote=False):
        pass


def test_a_table_has_one_lock_through_every_link_and_spelling(tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    (tmp_path / "lake" / "alias").symlink_to("table")
    for spelling in ("lake/table", "link/table", "link/table/", "lake/alias", "lake/../link/./table"):
        with store_lock(f"{tmp_path}/{spelling}", is_remote=False):
            locked = [path.name for path in (tmp_path / "lake").iterdir() if path.name.startswith(".")]
            assert locked == [".table.dagster-kafka-flip.lock"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "link"]


def test_users_who_may_write_beside_the_table_may_take_its_lock(tmp_path):
    for mode, expected in ((0o755, 0o644), (0o775, 0o664), (0o777, 0o666)):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        with store_lock(str(folder / "table"), is_remote=False):
            assert stat.S_IMODE((folder / ".table.dagster-kafka-flip.lock").stat().st_mode) == expected


def test_a_lock_that_can_not_be_opened_is_reported_and_a_link_is_not_followed(tmp_path):
    lock = tmp_path / ".table.dagster-kafka-flip.lock"
    (tmp_path / "elsewhere").touch()
    lock.symlink_to("elsewhere")
    taken = store_lock(str(tmp_path / "table"), is_remote=False)
    with pytest.raises(TableError, match=r"can't be locked: .* it is a symbolic link"), taken:
        pass
    lock.unlink()
    lock.mkdir()
    taken = store_lock(str(tmp_path / "table"), is_remote=False)
    with pytest.raises(TableError, match=r"Is a directory\. Every user that writes"), taken:
        pass


@pytest.mark.parametrize("name", ["plain", "two words", "50%25", "a#b", "a?b", "ü"])
def test_the_lock_is_beside_the_table_whatever_its_path(tmp_path, name):
    folder = tmp_path / name
    for location in (str(folder / "table"), (folder / "table").as_uri()):
        with store_lock(location, is_remote=False):
            assert [path.name for path in folder.iterdir()] == [".table.dagster-kafka-flip.lock"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("location", ["s3a://bucket/t", "hdfs://n:9/t", "abfss://c@a/t", "catalog:"])
def test_nothing_is_locked_on_other_stores(location, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with store_lock(location, is_remote=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_server_s_path_that_is_not_here_is_left_to_the_server(tmp_path):
    with store_lock(str(tmp_path / "not-here" / "table"), is_remote=True):
        pass
    assert list(tmp_path.iterdir()) == []
    with store_lock(str(tmp_path / "table"), is_remote=True):
        assert [path.name for path in tmp_path.iterdir()] == [".table.dagster-kafka-flip.lock"]
