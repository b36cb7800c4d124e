"""The same checks as `make lint`, beside the other tests, so that they keep no core waiting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command", [("ruff", "format", "--check", "."), ("ruff", "check", "."), ("pyright",)], ids=" ".join
)
def test_the_code_is_formatted_linted_and_typed(command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=_ROOT, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
