"""An interrupt is not lost, wherever it comes."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: the hook, the handler and the interrupt are the whole process's.
_SCRIPT = """
import signal, sys, time, weakref
from dagster_kafka_flip.runtime.interrupts import keep_interrupts

class Interrupted(BaseException):
    pass

def handler(number, frame):
    raise {error}

class Thing:
    pass

signal.signal(signal.SIGINT, handler)
keep_interrupts()
keep_interrupts()
thing = Thing()
reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del thing
    print("went on", flush=True)
    time.sleep(20)
    print("was never interrupted")
except {error}:
    print("interrupted")
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Interrupted"])
def test_an_interrupt_in_a_callback_of_a_weak_reference_comes_again(error):
    output = _run(_SCRIPT.format(error=error))
    assert output.splitlines() == ["went on", "interrupted"]


def test_other_errors_that_cannot_be_raised_are_reported_as_before():
    script = _SCRIPT.format(error="KeyboardInterrupt").replace("signal.raise_signal(signal.SIGINT)", "1 / 0")
    output = _run(script.replace("sleep(20)", "sleep(0.2)"))
    assert "Exception ignored in" in output
    assert "ZeroDivisionError" in output
    assert output.splitlines()[-1] == "was never interrupted"


def _run(script: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=True,
    )
    return finished.stdout


def test_only_signals_from_outside_are_interrupts():
    from dagster._core.errors import DagsterExecutionInterruptedError

    from dagster_kafka_flip.runtime.interrupts import is_interrupt

    assert is_interrupt(KeyboardInterrupt)
    assert is_interrupt(DagsterExecutionInterruptedError)
    for other in (Exception, ValueError, SystemExit, GeneratorExit):
        assert not is_interrupt(other)
