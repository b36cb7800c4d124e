"""A broker behind a network, for all tests of this folder that cut it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.network import DistantBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def distant_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistantBroker]:
    """A broker that clients reach through a network which can be cut."""
    with DistantBroker(tmp_path_factory.mktemp("distant")) as local:
        yield local


@pytest.fixture
def distant(distant_broker: DistantBroker) -> Iterator[DistantBroker]:
    """The same, with its network whole again after the test."""
    yield distant_broker
    distant_broker.network.heal()
