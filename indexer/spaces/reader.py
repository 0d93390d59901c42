"""One repository brought up to its host's head: polled, and loaded whole where a poll doesn't lead on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

from indexer.errors import Rejected
from indexer.keys import PublicKey
from indexer.model import Change
from indexer.spaces.client import SpaceClient
from indexer.spaces.commit import Judgement
from indexer.spaces.dialect import Dialect
from indexer.spaces.failures import SpaceUnavailable
from indexer.spaces.load import Load, open_load
from indexer.spaces.repo import Applied, Outcome, Poll, Reload, ReloadReason, RepoState, Silent

Keys: TypeAlias = Callable[[bool], Awaitable[PublicKey]]
"""The author's ``#atproto`` key; True: asked for afresh."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A repository loaded whole: it replaces, in one transaction with ``state``, everything held at or below its rev.

    A record held that isn't among :meth:`changes` is gone. ``reason`` is why the poll didn't do, None for a first
    load. ``rewound``: the host's head lies before the rev that was held, so what is held above it goes too.
    """

    state: RepoState
    reason: ReloadReason | None
    rewound: bool
    load: Load

    def changes(self, prefixes: Sequence[str]) -> Iterator[Change | Rejected]:
        """As :meth:`indexer.spaces.load.Load.changes`: reads the spool, which has to be open still."""
        return self.load.changes(self.state, prefixes)


Reading: TypeAlias = "Applied | Loaded | Silent"


class SpaceReader:
    """Reads one account's own repositories through ``client``, of the collections under ``prefixes``.

    Nothing is kept between calls: state comes in and goes out, to be stored with what it came with.
    """

    def __init__(self, client: SpaceClient, keys: Keys, *, prefixes: Sequence[str]) -> None:
        self._client = client
        self._keys = keys
        self._prefixes = tuple(prefixes)

    async def read(self, state: RepoState, spool: BinaryIO) -> Reading:
        """What leads from ``state`` to the host's head.

        A load goes through ``spool``, a file open for reading and writing. Raises FetchFailed (SpaceUnavailable with
        ``space_deleted`` is evidence that the space is gone), IdentityError and SpoolFailed; Rejected where the host
        gives a repository that doesn't hold together.
        """
        if not state.rev:
            return await self._load(state, spool, None)
        outcome = await self.poll(state)
        if isinstance(outcome, Reload):
            return await self._load(state, spool, outcome.reason)
        return outcome

    async def poll(self, state: RepoState) -> Outcome:
        """What the host's log says since ``state``, to its end."""
        poll = Poll(state, prefixes=self._prefixes, dialect=await self._client.dialect())
        more = True
        while more:
            page = await self._client.list_repo_ops(state.space, since=poll.since, cursor=poll.cursor)
            more = await asyncio.to_thread(poll.take, page)
        outcome = await asyncio.to_thread(poll.finish, await self._keys(False))
        if outcome == Reload(ReloadReason.JUDGED_OTHERWISE):
            # Perhaps the account has a new key: that costs less to find out than a load.
            outcome = await asyncio.to_thread(poll.finish, await self._keys(True))
        return outcome

    async def _load(self, state: RepoState, spool: BinaryIO, reason: ReloadReason | None) -> Loaded | Silent:
        try:
            await self._client.get_repo(state.space, spool)
        except SpaceUnavailable as error:
            if error.state == "not_found":
                return Silent()  # an empty repository, or a bad day: no evidence
            raise
        load = await asyncio.to_thread(open_load, spool)
        loaded = await self._judged(state, load, await self._client.dialect())
        return Loaded(loaded, reason, loaded.rev < state.rev, load)

    async def _judged(self, state: RepoState, load: Load, dialect: Dialect) -> RepoState:
        for fresh in (False, True):
            judged = load.judge(await self._keys(fresh), space=state.space, did=state.did, dialect=dialect)
            if judged.judgement is Judgement.PROVEN:
                break
        return judged
