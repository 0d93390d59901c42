"""The parts of ``--trust verify``, joined in process over a test's own database, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import BinaryIO, Protocol

from indexer.accounts import Accounts
from indexer.identity import IdentityUnknown, ResolvedIdentity
from indexer.intake import Intake
from indexer.outbound import FetchFailed
from indexer.repair import Pace, Repair
from indexer.store import Limits
from indexer.store.repairs import Repairs
from indexer.trust import Proof, Tracked
from tests.indexing import Indexing, MemorySource, Sql, indexing

TABLES = (
    *("conversation", "compiled_prompt", "agent", "message", "other_record"),
    *("freshness", "recompile", "conversation_version"),
    *("tombstone", "pending", "probe", "dead_letter", "repo", "account", "cursor"),
)


@dataclass(slots=True)
class Clock:
    """A clock that stands still until it is turned."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self) -> datetime:
        """The present."""
        return self.now

    def turn(self, **by: float) -> None:
        """Go on by ``hours=…``, ``seconds=…``."""
        self.now += timedelta(**by)


class Identities(Protocol):
    """Who resolves DIDs."""

    async def resolve(self, did: str, *, fresh: bool = False) -> ResolvedIdentity:
        """Who a DID is."""


@dataclass(slots=True)
class Directory:
    """Identities known without asking anybody; each that is asked for is noted."""

    known: dict[str, ResolvedIdentity]
    asked: list[str] = field(default_factory=list)

    async def resolve(self, did: str, *, fresh: bool = False) -> ResolvedIdentity:
        """The identity, or IdentityUnknown."""
        self.asked.append(did)
        if did not in self.known:
            raise IdentityUnknown(f"{did} is not known")
        return self.known[did]


class Silence:
    """A network in which no host answers; ``asked`` counts the repositories asked for in vain."""

    def __init__(self) -> None:
        self.asked = 0

    async def get_repo(self, host: str, did: str, file: BinaryIO) -> int:
        """Nothing."""
        self.asked += 1
        raise FetchFailed(f"{host}: no answer")

    async def get_repo_status(self, host: str, did: str) -> object:
        """Nothing."""
        raise FetchFailed(f"{host}: no answer")

    async def describe_repo(self, host: str, did: str) -> tuple[str, ...]:
        """Nothing."""
        raise FetchFailed(f"{host}: no answer")


@dataclass(slots=True)
class Proving:
    """A pipeline that demands proofs, its repair and its accounts; nothing runs but what the test calls."""

    index: Indexing
    clock: Clock
    repairs: Repairs
    tracked: Tracked
    repair: Repair
    accounts: Accounts

    async def take(self, frames: Iterable[bytes]) -> None:
        """Take frames in and commit them."""
        await self.index.take(frames)

    async def mend(self, *, tries: int = 1) -> None:
        """Try at every want that is due until none is; ``tries`` times, an hour apart."""
        for number in range(tries):
            if number:
                self.clock.turn(hours=1)
            while await self.repair.attend():
                pass

    async def ask(self) -> None:
        """Attend to every check and probe that is due."""
        while await self.accounts.attend():
            pass


@asynccontextmanager
async def proving(
    url: str,
    identities: Identities,
    host: object,
    *,
    clock: Clock | None = None,
    limits: Limits | None = None,
    only: Iterable[str] = (),
) -> AsyncIterator[Proving]:
    """The real parts, joined as the daemon joins them, over the database at ``url``."""
    clock = clock or Clock()
    async with indexing(url, clock=clock, limits=limits, only=only) as index:
        repairs, tracked = Repairs(index.store), Tracked()
        index.pipeline.listen(tracked.learn)
        for did, rev, _ in await repairs.tracked():
            tracked.follow(did, rev)
        index.intake = Intake(index.pipeline, MemorySource("file:proven"), Proof(index.pipeline, tracked), None)  # type: ignore[arg-type]
        pace = Pace(first=1.0, longest=60.0)
        shared = (repairs, identities, host, index.pipeline, tracked)
        repair, accounts = Repair(*shared, pace=pace), Accounts(*shared, pace=pace)  # type: ignore[arg-type]
        yield Proving(index, clock, repairs, tracked, repair, accounts)


async def wants(sql: Sql) -> dict[str, list[str]]:
    """The repositories that are wanted, each with its reasons."""
    rows = await sql.fetch("select did, want_reasons from letta_store.repo where want is not null order by did")
    return {row["did"]: row["want_reasons"] for row in rows}


async def kept_of(sql: Sql, did: str) -> dict[str, int]:
    """How many rows every table holds of an account; tables without any are left out."""
    counts = {t: await sql.fetchval(f"select count(*) from letta_store.{t} where did = $1", did) for t in BY_DID}
    return {table: count for table, count in counts.items() if count}


BY_DID = tuple(table for table in TABLES if table != "cursor")


async def empty(sql: Sql) -> None:
    """Take everything out of the database."""
    await sql.execute("".join(f"delete from letta_store.{table};" for table in TABLES))  # a truncate takes longer
