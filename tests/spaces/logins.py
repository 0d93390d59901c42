"""An account on a simulated host, with an app password and a client that uses it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Final

from indexer.keys import PublicKey, signing_key
from indexer.outbound import Outbound
from indexer.simulator.network import Account, Network
from indexer.simulator.repository import Write
from indexer.simulator.spaces import SpacesPds
from indexer.spaces.client import SpaceClient
from indexer.spaces.reader import Reading, SpaceReader
from indexer.spaces.repo import RepoState
from indexer.spaces.session import Secret, Session
from tests.spaces.held import Held, truth_of

TYPE: Final = "xyz.quasigod.lab.letta.space"
PREFIXES: Final = ("xyz.quasigod.lab.letta.",)


@dataclass
class Login:
    """The account, its host and its first space; ``client`` and ``reader`` are logged in as it.

    ``fresh_keys`` counts how often the reader asked for the key afresh.
    """

    outbound: Outbound
    network: Network
    pds: SpacesPds
    account: Account
    space: str
    password: str
    fresh_keys: int = 0
    client: SpaceClient = field(init=False)
    reader: SpaceReader = field(init=False)
    held: Held = field(init=False)

    def __post_init__(self) -> None:
        self.key = self._present_key()
        self.client = self.client_with(self.password)
        self.reader = SpaceReader(self.client, self._keys, prefixes=PREFIXES)
        self.held = Held(RepoState(self.space, self.did), PREFIXES)

    @property
    def did(self) -> str:
        """The account."""
        return self.account.did

    def client_with(self, password: str, page: int = 5) -> SpaceClient:
        """A client with a login of its own."""
        return SpaceClient(Session(self.outbound, self.pds.url, self.did, Secret(password)), page=page)

    def asked(self, method: str) -> int:
        """How often the host was asked this."""
        return sum(method in request for request in self.pds.requests)

    def write(self, *writes: tuple[str, object]) -> str:
        """One batch to the own repository; gives its rev."""
        return self.pds.write(self.space, self.did, *(Write(path, value) for path, value in writes))

    async def read(self) -> Reading:
        """One reading, taken in."""
        with io.BytesIO() as spool:
            reading = await self.reader.read(self.held.state, spool)
            self.held.take(reading)
        return reading

    def truth(self) -> dict[str, str]:
        """What the host holds."""
        return truth_of(self.pds.repositories[self.space, self.did], PREFIXES)

    async def _keys(self, fresh: bool) -> PublicKey:
        if fresh:
            self.fresh_keys += 1
            self.key = self._present_key()
        return self.key

    def _present_key(self) -> PublicKey:
        return signing_key(self.account.document(), self.did)
