"""`make lint`, beside the other tests, so that it keeps no core waiting."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

# pyright alone keeps a slow machine busy for minutes, next to the other workers' tests.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_ROOT = Path(__file__).parent.parent


def test_the_code_is_formatted_linted_and_typed():
    # The environment is there, however old its mark is: it runs this test.
    command = ["make", "--old-file=.venv/.ready-test", "lint"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=1100)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
