"""Followers of a simulated host's spaces over a real database, one round at a time, and what they lead to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from indexer.keys import PublicKey, signing_key
from indexer.outbound import Outbound
from indexer.simulator.dagcbor import to_json
from indexer.simulator.freshness import judge
from indexer.simulator.network import Account, Network
from indexer.simulator.repository import Write
from indexer.simulator.spaces import SpacesPds
from indexer.space_follow import SpaceFollower
from indexer.spaces.client import SpaceClient
from indexer.spaces.pace import Pace
from indexer.spaces.session import Secret, Session
from tests.indexing import Indexing, Sql, indexing, untrue_flags
from tests.spaces.logins import PREFIXES, TYPE

ROWS = "select uri, cid, rev, proof from letta.record"
FLAGS = "select uri, freshness, stale_reasons from letta.compiled_prompt"
STATES = "select source, state, rev from letta.source where source like 'space:%' order by source"


@dataclass
class Followed:
    """An account of ``network`` with one space on ``pds``, and the index that its followers write.

    Each round is a follower of its own, as after a restart; ``said`` are the states they reported.
    """

    network: Network
    pds: SpacesPds
    account: Account
    space: str
    password: str
    index: Indexing
    sql: Sql
    page: int = 5
    said: list[str] = field(default_factory=list)

    @property
    def did(self) -> str:
        """The account."""
        return self.account.did

    def follower(self, outbound: Outbound, *, once: bool = True, wanted: Callable[[str], bool] | None = None) -> Any:
        """A follower of the account that never waits."""

        async def open_client() -> SpaceClient:
            return SpaceClient(Session(outbound, self.pds.url, self.did, Secret(self.password)), page=self.page)

        async def key(did: str, fresh: bool) -> PublicKey:
            return signing_key(self.account.document(), did)

        return SpaceFollower(
            self.account.handle,
            open_client,
            key,
            self.index.store,
            self.index.pipeline,
            wanted=wanted or (lambda _: True),
            report=lambda state, _: self.said.append(state),
            once=once,
            pace=lambda: Pace(shortest=0.0, longest=0.0),
        )

    async def round(self, **more: Any) -> bool:
        """Follow once, from what is stored to the hosts' heads; whether nothing was given up."""
        outbound = Outbound(allow_private_hosts=True)
        try:
            done: bool = await self.follower(outbound, **more).run()
        finally:
            await outbound.aclose()
        return done

    def write(self, *writes: tuple[str, object], space: str | None = None, did: str | None = None) -> str:
        """One batch to the account's repository in its space; gives its rev."""
        return self.pds.write(space or self.space, did or self.did, *(Write(path, value) for path, value in writes))

    def truth(self) -> dict[str, object]:
        """URI and value of every record under our prefix that the host holds for the account, in all its spaces."""
        return {
            f"{space}/{did}/{path}": to_json(held.value)
            for (space, did), repository in self.pds.repositories.items()
            for path, held in repository.records.items()
            if did == self.did and path.startswith(PREFIXES)
        }

    async def rows(self) -> dict[str, str]:
        """URI and CID of every row, as its owner sees them."""
        return {row["uri"]: row["cid"] for row in await self.sql.fetch(ROWS)}

    async def is_true(self, *, proof: str | None = "space") -> None:
        """The rows are the host's records, whole and proven, and every flag is what the oracle says."""
        truth = self.truth()
        rows = await self.sql.fetch("select uri, value, proof from letta.record")
        assert {row["uri"]: json.loads(row["value"]) for row in rows} == truth
        assert {row["proof"] for row in rows} <= {proof}
        await flags_are_true(self.sql, truth)

    async def states(self) -> dict[str, str]:
        """The state of every source of spaces."""
        return {row["source"]: row["state"] for row in await self.sql.fetch(STATES)}

    @property
    def source(self) -> str:
        """The name of the account's repository in its space in ``letta.source``."""
        return f"space:{self.space}#{self.did}"


async def flags_are_true(sql: Sql, truth: Mapping[str, object]) -> None:
    """Every prompt's flags are what the oracle says of these records, and what the defining view computes."""
    verdicts = {uri: (one.freshness, list(one.stale_reasons)) for uri, one in judge(truth).items()}
    rows = await sql.fetch(FLAGS)
    assert {row["uri"]: (row["freshness"], row["stale_reasons"]) for row in rows} == verdicts
    assert await untrue_flags(sql) == []


@asynccontextmanager
async def followed(database: str, sql: Sql, **more: Any) -> AsyncIterator[Followed]:
    """An account with one empty space on a host of its own, and an index in this database."""
    network = Network()
    account = network.create_account()
    async with SpacesPds(network) as pds, indexing(database, **more) as index:
        space = pds.create_space(account.did, TYPE, "self")
        password = pds.add_app_password(account.did)
        yield Followed(network, pds, account, space, password, index, sql)
