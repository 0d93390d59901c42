"""Following the permissioned spaces of one account: discovery, first load, polls, and what each leads to in the store.

A second way in beside the firehose: its changes go through the same store. Nothing here names a space, an account or
a record in a log, a metric or a notification; whoever may see a space finds its state in ``letta.source``.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
from indexer.spaces.pace import LONGEST, Pace
from indexer.spaces.reader import Loaded, SpaceReader
from indexer.spaces.repo import Applied, RepoState, Silent
from indexer.store import Store
from indexer.store.spaces import Move, Spaces, SpaceState, StateMovedError, Version

LABEL = "space"  # of every space, in metrics
DISCOVERY = 60.0  # seconds between looks at the account's list of spaces
SHORT = 1.0  # seconds to wait after a database that was away
ONCE_ATTEMPTS = 3  # tries under --once before an account or a repository counts as failed
ONCE_PATIENCE = 20.0  # seconds that a host may want to be left alone under --once

_log = structlog.stdlib.get_logger("indexer.space_follow")

Opener = Callable[[], Awaitable[SpaceClient]]
Keys = Callable[[str, bool], Awaitable[PublicKey]]
Report = Callable[[str, str | None], None]


@dataclass(slots=True)
class _Repo:
    """One repository of the account: how far it is read, when it is next, whether it was at its head once."""

    state: RepoState
    due: float
    pace: Pace
    read: bool = False
    failures: int = 0  # in a row
    noted: str = ""  # what ``letta.source`` says


class SpaceFollower:
    """Follows the repositories that ``account`` has in permissioned spaces, those that ``wanted`` names.

    ``account`` is its name in the settings. ``open_client`` signs in; ``keys`` gives an author's key, afresh if told
    so; ``report`` hears of the account's state (``live``, ``waiting``, ``refused``, ``broken``) with a sentence that
    names no space; ``pace`` gives the waits between looks at one repository.
    """

    def __init__(
        self,
        account: str,
        open_client: Opener,
        keys: Keys,
        store: Store,
        pipeline: Pipeline,
        *,
        wanted: Callable[[str], bool],
        report: Report,
        once: bool = False,
        pace: Callable[[], Pace] = Pace,
    ) -> None:
        self._account = account
        self._open_client = open_client
        self._keys = keys
        self._spaces = Spaces(store, pipeline.lease)
        self._pipeline = pipeline
        self._wanted = wanted
        self._report = report
        self._once = once
        self._meter = pipeline.metrics.source(LABEL)
        self._new_pace = pace
        self._pace = pace()
        self._repos: dict[str, _Repo] = {}
        self._discovered = False
        self._failures = 0
        self._missed = False  # something was given up under ``once``

    async def run(self) -> bool:
        """Follow until cancelled; under ``once`` until every repository is at its host's head. False: given up."""
        while True:
            try:
                return await self._follow(await self._open_client())
            except (PasswordRefused, UnknownDialect) as error:
                await self._give_up(error)
                return False
            except (FetchFailed, IdentityError) as error:
                self._failures += 1
                wait = self._pause(self._pace, error)
                await self._tell("waiting", str(error))
                if self._once and (self._failures >= ONCE_ATTEMPTS or wait > ONCE_PATIENCE):
                    self._meter.finish()
                    return False
                await asyncio.sleep(wait)

    async def rest(self, word: str) -> None:
        """Note for everything that was followed well that it isn't any more: ``stopped`` or ``ended``."""
        if self._discovered:
            await self._note("", word, None)
        for repo in self._repos.values():
            if repo.noted == "live":
                await self._note_repo(repo, word, None)
        self._discovered = False

    async def _give_up(self, error: IndexerError) -> None:
        """A state of its own, and no loop: nothing changes until somebody does something about it."""
        self._discovered = False
        state = "refused" if isinstance(error, PasswordRefused) else "broken"
        await self._tell(state, str(error))
        for repo in self._repos.values():
            await self._note_repo(repo, state, str(error))
        self._meter.finish()

    async def _tell(self, state: str, detail: str | None) -> None:
        self._report(state, detail)
        await self._note("", state, detail)

    async def _follow(self, client: SpaceClient) -> bool:
        loop = asyncio.get_running_loop()
        reader = SpaceReader(
            client, lambda fresh: self._keys(client.did, fresh), prefixes=self._pipeline.router.prefixes
        )
        discover = loop.time()
        while True:
            if loop.time() >= discover:
                discover = loop.time() + await self._discover(client)
            for space, repo in [item for item in self._repos.items() if item[1].due <= loop.time()]:
                repo.due = loop.time() + await self._turn(reader, space, repo)
            if self._once and self._discovered and all(repo.read for repo in self._repos.values()):
                self._meter.finish()
                await self.rest("ended")
                return not self._missed
            soonest = min([discover, *(repo.due for repo in self._repos.values())])
            await asyncio.sleep(max(0.0, soonest - loop.time()))

    async def _discover(self, client: SpaceClient) -> float:
        """Take in the account's spaces; seconds until the next look.

        One that is listed no more is no evidence of anything: it is asked on.
        """
        listed = await client.list_spaces()
        admitted = self._pipeline.router.refusal(client.did) is None
        try:
            states = await self._states(client.did)
            known = {space for space in {*listed, *states, *self._repos} if admitted and self._wanted(space)}
            forgotten = {space for space in known if await self._spaces.is_forgotten(space, client.did)}
        except DatabaseUnavailable:
            return SHORT
        for space in forgotten:
            self._repos.pop(space, None)
        for space in sorted(known - forgotten - self._repos.keys()):
            state = states.get(space) or RepoState(space, client.did)
            self._repos[space] = _Repo(state, asyncio.get_running_loop().time(), self._new_pace())
        self._discovered, self._failures, self._pace = True, 0, self._new_pace()
        await self._tell("live", None)
        self._meter.committed(None, self._pipeline.clock().timestamp())
        return DISCOVERY

    async def _states(self, did: str) -> dict[str, RepoState]:
        return {space: _held(state) for space, state in (await self._spaces.states(did)).items()}

    async def _turn(self, reader: SpaceReader, space: str, repo: _Repo) -> float:
        """One look at a repository; seconds until the next. Raises PasswordRefused, UnknownDialect."""
        try:
            return await self._look(reader, space, repo)
        except DatabaseUnavailable:
            return SHORT

    async def _look(self, reader: SpaceReader, space: str, repo: _Repo) -> float:
        brought = False
        try:
            brought = await self._read(reader, repo)
        except StateMovedError:
            await self._resume(space, repo)
            return 0.0
        except (PasswordRefused, UnknownDialect):
            raise
        except SpaceUnavailable as error:
            if error.state == "space_deleted":
                await self._spaces.remove(space, [repo.state.did], self._pipeline.clock())
                del self._repos[space]
                return 0.0
            if error.state == "refused":
                return await self._failed(repo, error)
        except (FetchFailed, IdentityError, SpoolFailed, Rejected, OSError) as error:
            return await self._failed(repo, error)
        repo.read, repo.failures = True, 0
        if repo.noted != "live":
            await self._note_repo(repo, "live", None)
        self._meter.committed(None, self._pipeline.clock().timestamp())
        return repo.pace.busy() if brought else repo.pace.quiet()

    async def _resume(self, space: str, repo: _Repo) -> None:
        """Go on from where somebody else has led the repository, unless it is forgotten."""
        if await self._spaces.is_forgotten(space, repo.state.did):
            del self._repos[space]
        else:
            repo.state = (await self._states(repo.state.did)).get(space, RepoState(space, repo.state.did))

    async def _failed(self, repo: _Repo, error: Exception) -> float:
        repo.failures += 1
        wait = self._pause(repo.pace, error)
        if self._once and (repo.failures >= ONCE_ATTEMPTS or wait > ONCE_PATIENCE):
            repo.read = self._missed = True
        await self._note_repo(repo, "waiting", str(error) if isinstance(error, IndexerError) else "no room on disk")
        return wait

    def _pause(self, pace: Pace, error: Exception) -> float:
        """Seconds to leave a host alone after a failure: the longest where asking again is pointless."""
        wait = pace.failed(getattr(error, "retry_after", None))
        return max(wait, LONGEST) if getattr(error, "permanent", False) else wait

    async def _note_repo(self, repo: _Repo, word: str, detail: str | None) -> None:
        await self._note(repo.state.space, word, detail, repo.state.did)
        repo.noted = word

    async def _note(self, space: str, word: str, detail: str | None, did: str | None = None) -> None:
        try:
            await self._spaces.note(did or self._account, space, word, detail, self._pipeline.clock())
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
        repo.state, repo.noted = reading.state, "live"


def _stored(state: RepoState) -> SpaceState:
    return SpaceState(state.space, state.did, state.rev, state.lthash, state.judgement.value)


def _held(state: SpaceState) -> RepoState:
    return RepoState(state.space, state.did, state.rev, state.lthash, Judgement(state.judgement))


def _version(one: Superseded) -> Version:
    key = Key(one.did, one.space, one.collection, one.rkey)
    return Version(key, one.rev, one.ordinal, one.cid, one.record)
