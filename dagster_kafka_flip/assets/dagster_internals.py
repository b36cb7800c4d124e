"""What this package uses of Dagster's private modules. No other module imports them.

Each name is here because Dagster has no public one for it. A release that moves one breaks this module alone.
"""

from __future__ import annotations

# What Dagster raises for an argument of the wrong type; it has no public base class for that.
from dagster._check import CheckError

# The type of an integer in run config that an environment variable may give.
from dagster._config.field_utils import IntEnvVar

# Tells whether definitions are being loaded again, and keeps what a code server found before.
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType

# What `@asset(key=...)` takes.
from dagster._core.definitions.events import CoercibleToAssetKey

# Loads a code location as `dagster dev -f` and `dg` do.
from dagster._core.definitions.reconstruct import repository_def_from_target_def

# The status in a stored check result; the public types have only whether it passed.
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.load_target import get_origins_from_toml
from dagster._grpc.utils import get_loadable_targets

# Where integrations tell their versions.
from dagster_shared.libraries import DagsterLibraryRegistry

__all__ = [
    "AssetCheckExecutionRecordStatus",
    "CheckError",
    "CoercibleToAssetKey",
    "DagsterLibraryRegistry",
    "DefinitionsLoadContext",
    "DefinitionsLoadType",
    "IntEnvVar",
    "LoadableTargetOrigin",
    "get_loadable_targets",
    "get_origins_from_toml",
    "repository_def_from_target_def",
]
