"""Writes what was measured into docs/benchmarks.md, with a picture: `python -m benchmarks.document`.

The measurements are the files in benchmarks/results that `make bench` leaves. Each table of the document stands between
two marks that name its file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks import growth, memory, starts, throughput
from benchmarks.report import markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).resolve().parent.parent
RESULTS = _ROOT / "benchmarks" / "results"
DOCUMENT = _ROOT / "docs" / "benchmarks.md"
PICTURE = _ROOT / "docs" / "images" / "throughput.svg"

_PART = re.compile(r"(<!-- from (?P<name>[\w-]+)(?: (?P<part>[\w, ]+))? -->\n)(?:.*?)(<!-- end -->)", re.DOTALL)


def written(text: str) -> str:
    """The document with the tables of all measurements.

    Args:
        text: The document as it is.
    """
    return _PART.sub(lambda match: f"{match[1]}\n{_table(match['name'], match['part'])}\n{match[4]}", text)


def _read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _table(name: str, part: str | None) -> str:
    """The table of a file, or of one part of it: a form of records, or a curve."""
    results = _read(name)
    if name.startswith("throughput"):
        landings = [throughput.Measurement(**each) for each in results["landings"]]
        return _of_medians(*throughput.table_of(part or "", landings))
    if name == "growth":
        return markdown(*growth.table_of(part or "", [growth.Measurement(**each) for each in results["runs"]]))
    if name == "memory":
        return markdown(*memory.table_of([memory.Measurement(**each) for each in results["runs"]]))
    return _of_medians(*starts.table_of([starts.Measurement(**each) for each in results["runs"]]))


def _of_medians(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the lowest and the highest measurement, which benchmarks/results and the picture have."""
    shown = [index for index, head in enumerate(heads) if head != "from to"]
    return markdown([heads[index] for index in shown], [[row[index] for index in shown] for row in rows])


def draw() -> None:
    """Draws the throughput."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    # The same measurements give the same file.
    mpl.rcParams["svg.hashsalt"] = "throughput"
    results = _read("throughput")
    landings = [throughput.Measurement(**each) for each in results["landings"]]
    figure, axes = plt.subplots(2, 1, figsize=(8, 5.4), height_ratios=(5, 7), layout="constrained")
    for axis, form in zip(axes, ("raw", "json"), strict=True):
        found = [each for each in landings if each.form == form and each.way != throughput.OURS_NULL]
        bars = axis.barh(
            [each.way for each in found],
            [each.seconds for each in found],
            color=["#2f6db5" if each.way.startswith(throughput.OURS) else "#b9c4d0" for each in found],
            xerr=[
                [each.seconds - min(each.all_seconds) for each in found],
                [max(each.all_seconds) - each.seconds for each in found],
            ],
        )
        axis.bar_label(bars, [f"{each.seconds:.1f} s" for each in found], padding=6)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_title(
            f"{results['settings']['records']:,} records, {form}, into Delta: seconds", loc="left", fontsize=10
        )
    figure.savefig(PICTURE, metadata={"Date": None})


@click.command()
def main() -> None:
    """Write the measurements into docs/benchmarks.md."""
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    draw()
    click.echo(f"{DOCUMENT.relative_to(_ROOT)} and {PICTURE.relative_to(_ROOT)} have what is in benchmarks/results.")


if __name__ == "__main__":
    main()
