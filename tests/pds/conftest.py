"""One PDS for all tests of this folder; each test has a client of its own and makes its own accounts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.pds.process import PdsProcess
from tests.pds.real import RealPds


@pytest.fixture(scope="session")
def pds_process() -> Iterator[PdsProcess]:
    """The running servers; the test is skipped where Node.js or npm is missing."""
    with PdsProcess.start() as process:
        yield process


@pytest.fixture
async def pds(pds_process: PdsProcess) -> AsyncIterator[RealPds]:
    """A client of the shared PDS."""
    async with RealPds.attach(pds_process) as client:
        yield client
