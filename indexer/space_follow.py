"""Following the permissioned spaces of one account: discovery, first load, polls, and what each leads to in the store.

A second way in beside the firehose: its changes go through the same store. Nothing here names a space, an account or
a record in a log, a metric or a notification; whoever may see a space finds its state in ``letta.source``.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from indexer.batch import Key
from indexer.changes import check_rev
from indexer.errors import DatabaseUnavailable, IdentityError, IndexerError, Rejected
from indexer.keys import PublicKey
from indexer.model import Change
from indexer.outbound import FetchFailed, SpoolFailed
from indexer.pipeline import Pipeline, micros
from indexer.spaces.client import SpaceClient
from indexer.spaces.commit import Judgement
from indexer.spaces.failures import PasswordRefused, SpaceUnavailable, UnknownDialect
from indexer.spaces.folding import Superseded
from indexer.spaces.pace import Pace
from indexer.spaces.reader import Loaded, SpaceReader
from indexer.spaces.repo import Applied, RepoState, Silent
from indexer.store import Store
from indexer.store.spaces import Move, Spaces, SpaceState, StateMovedError, Version

LABEL = "space"  # of every space, in metrics
DISCOVERY = 60.0  # seconds between looks at the account's list of spaces
SHORT = 1.0  # seconds to wait after a database that was away

_log = structlog.stdlib.get_logger("indexer.space_follow")

Opener = Callable[[], Awaitable[SpaceClient]]
Keys = Callable[[str, bool], Awaitable[PublicKey]]
Report = Callable[[str, str | None], None]


@dataclass(slots=True)
class _Repo:
    """One repository of the account: how far it is read, when it is next, whether it was at its head once."""

    state: RepoState
    due: float
    pace: Pace = field(default_factory=Pace)
    read: bool = False


class SpaceFollower:
    """Follows the repositories that one account has in permissioned spaces, those that ``wanted`` names.

    ``open_client`` signs in; ``keys`` gives an author's key, afresh if told so; ``report`` hears of the account's state
    (``live``, ``waiting``, ``refused``, ``broken``) with a sentence that names no space.
    """

    def __init__(
        self,
        open_client: Opener,
        keys: Keys,
        store: Store,
        pipeline: Pipeline,
        *,
        wanted: Callable[[str], bool],
        report: Report,
        once: bool = False,
    ) -> None:
        self._open_client = open_client
        self._keys = keys
        self._store = store
        self._spaces = Spaces(store)
        self._pipeline = pipeline
        self._wanted = wanted
        self._report = report
        self._once = once
        self._meter = pipeline.metrics.source(LABEL)
        self._repos: dict[str, _Repo] = {}
        self._failures = 0

    async def run(self) -> bool:
        """Follow until cancelled; under ``once`` until every repository is at its host's head. False: given up."""
        pace = Pace()
        while True:
            try:
                return await self._follow(await self._open_client())
            except (PasswordRefused, UnknownDialect) as error:
                await self._give_up(error)
                return False
            except (FetchFailed, IdentityError) as error:
                self._failures += 1
                self._report("waiting", str(error))
                if self._once and self._failures >= 3:
                    return False
                await asyncio.sleep(pace.failed(getattr(error, "retry_after", None)))

    async def _give_up(self, error: IndexerError) -> None:
        """A state of its own, and no loop: nothing changes until somebody does something about it."""
        state = "refused" if isinstance(error, PasswordRefused) else "broken"
        self._report(state, str(error))
        for repo in self._repos.values():
            await self._note(repo.state, state, str(error))
        self._meter.finish()

    async def _follow(self, client: SpaceClient) -> bool:
        loop = asyncio.get_running_loop()
        reader = SpaceReader(
            client, lambda fresh: self._keys(client.did, fresh), prefixes=self._pipeline.router.prefixes
        )
        discover = loop.time()
        while True:
            if loop.time() >= discover:
                await self._discover(client)
                discover = loop.time() + DISCOVERY
            for space, repo in [item for item in self._repos.items() if item[1].due <= loop.time()]:
                repo.due = loop.time() + await self._turn(reader, space, repo)
            if self._once and all(repo.read for repo in self._repos.values()):
                self._meter.finish()
                return True
            soonest = min([discover, *(repo.due for repo in self._repos.values())])
            await asyncio.sleep(max(0.0, soonest - loop.time()))

    async def _discover(self, client: SpaceClient) -> None:
        """Take in the account's spaces. One that is listed no more is no evidence of anything: it is asked on."""
        listed = [space for space in await client.list_spaces() if self._wanted(space)]
        states = await self._read_states(client.did)
        for space in {*listed, *states}:
            if space not in self._repos and self._wanted(space) and not await self._spaces.is_forgotten(space):
                state = states.get(space) or RepoState(space, client.did)
                self._repos[space] = _Repo(state, asyncio.get_running_loop().time())
        self._failures = 0
        self._report("live", None)
        self._meter.committed(None, self._pipeline.clock().timestamp())

    async def _read_states(self, did: str) -> dict[str, RepoState]:
        while True:
            try:
                states = await self._spaces.states(did)
            except DatabaseUnavailable:
                await asyncio.sleep(SHORT)
            else:
                return {space: _held(state) for space, state in states.items()}

    async def _turn(self, reader: SpaceReader, space: str, repo: _Repo) -> float:
        """One look at a repository; seconds until the next."""
        try:
            brought = await self._read(reader, repo)
        except DatabaseUnavailable:
            return SHORT
        except StateMovedError:
            repo.state = (await self._read_states(repo.state.did)).get(space, RepoState(space, repo.state.did))
            if await self._spaces.is_forgotten(space):
                del self._repos[space]
            return 0.0
        except (PasswordRefused, UnknownDialect):
            raise
        except SpaceUnavailable as error:
            if error.state == "space_deleted":
                await self._spaces.remove(space, [repo.state.did], self._pipeline.clock())
                del self._repos[space]
                return 0.0
            return await self._failed(repo, error, None)
        except (FetchFailed, IdentityError, SpoolFailed, Rejected) as error:
            return await self._failed(repo, error, getattr(error, "retry_after", None))
        repo.read = True
        self._meter.committed(None, self._pipeline.clock().timestamp())
        return repo.pace.busy() if brought else repo.pace.quiet()

    async def _failed(self, repo: _Repo, error: Exception, retry_after: float | None) -> float:
        await self._note(repo.state, "waiting", str(error))
        repo.read = repo.read or (self._once and isinstance(error, SpaceUnavailable))
        return repo.pace.failed(retry_after)

    async def _note(self, state: RepoState, word: str, detail: str) -> None:
        source = f"space:{state.space}#{state.did}"
        try:
            await self._store.set_source_state(source, word, detail[:500], self._pipeline.clock())
        except DatabaseUnavailable:
            _log.info("the state of a source could not be noted")

    async def _read(self, reader: SpaceReader, repo: _Repo) -> bool:
        """Bring one repository to its host's head; whether that brought anything."""
        with tempfile.TemporaryFile() as spool:
            reading = await reader.read(repo.state, spool)
            if isinstance(reading, Silent):
                return False
            if isinstance(reading, Applied) and not reading.operations and repo.state == reading.state:
                return False
            now = self._pipeline.clock()
            check_rev(reading.state.rev, micros(now))
            if isinstance(reading, Loaded):
                outcomes = await asyncio.to_thread(lambda: list(reading.changes(self._pipeline.router.prefixes)))
            else:
                outcomes = [*reading.changes, *reading.rejected]
        changes = [outcome for outcome in outcomes if isinstance(outcome, Change)]
        for rejected in (outcome for outcome in outcomes if isinstance(outcome, Rejected)):
            self._pipeline.metrics.dropped(rejected.reason)
            self._pipeline.complain(rejected.reason, LABEL)
        await self._write(repo, reading, changes, now)
        return True

    async def _write(self, repo: _Repo, reading: Applied | Loaded, changes: Sequence[Change], now: datetime) -> None:
        superseded = reading.superseded if isinstance(reading, Applied) else ()
        move = Move(
            before=_stored(repo.state),
            after=_stored(reading.state),
            changes=changes,
            superseded=[_version(one) for one in superseded],
            whole=isinstance(reading, Loaded),
            proof="space" if reading.state.judgement is Judgement.PROVEN else None,
        )
        for change in changes:
            self._pipeline.metrics.operation(change.collection, "delete" if change.cid is None else "update")
        self._pipeline.learn(await self._spaces.move(move, now))
        repo.state = reading.state


def _stored(state: RepoState) -> SpaceState:
    return SpaceState(state.space, state.did, state.rev, state.lthash, state.judgement.value)


def _held(state: SpaceState) -> RepoState:
    return RepoState(state.space, state.did, state.rev, state.lthash, Judgement(state.judgement))


def _version(one: Superseded) -> Version:
    key = Key(one.did, one.space, one.collection, one.rkey)
    return Version(key, one.rev, one.ordinal, one.cid, one.record)
