"""A simulated host of spaces, and an account that reads its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from indexer.outbound import Outbound
from indexer.simulator.network import Network
from indexer.simulator.spaces import SpacesPds
from tests.spaces.logins import TYPE, Login


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    """A client that may connect to loopback."""
    client = Outbound(allow_private_hosts=True)
    yield client
    await client.aclose()


@pytest.fixture
async def login(outbound: Outbound) -> AsyncIterator[Login]:
    """An account with one empty space, on a host of its own."""
    network = Network()
    account = network.create_account()
    async with SpacesPds(network) as pds:
        space = pds.create_space(account.did, TYPE, "self")
        yield Login(outbound, network, pds, account, space, pds.add_app_password(account.did))
