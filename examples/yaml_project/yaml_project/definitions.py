"""What `dg` makes for every project: everything in defs/."""

from pathlib import Path

from dagster import Definitions, definitions, load_from_defs_folder


@definitions
def defs() -> Definitions:
    """All that the YAML files define."""
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
