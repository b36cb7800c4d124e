"""How the tests stop tasks on executors in the middle of their records."""

from __future__ import annotations

import pytest

from tests.cluster.driver import process_of
from tests.cluster.filled import PARTITIONS
from tests.faults.ordered_process import PATIENCE_SECONDS
from tests.processes import wait_until


@pytest.fixture
def stop(tmp_path):
    """What stops each task in the middle of its records, and lets it go on; and who waits there."""

    class Stop:
        marks, release = str(tmp_path / "waits-"), tmp_path / "release"

        def at(self, offset):
            return [self.marks, str(self.release), offset]

        def wait(self, driver, partitions=PARTITIONS):
            found = []

            def are_there():
                assert driver.process.poll() is None, driver.log()
                found[:] = [file for file in tmp_path.glob("waits-*") if file.suffix != ".new"]
                return len(found) >= partitions

            wait_until(are_there, seconds=PATIENCE_SECONDS)
            return [process_of(int(file.read_text(encoding="ascii"))) for file in found]

    return Stop()
