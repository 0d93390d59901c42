"""What the page for people reads: the views of ``letta`` as their reader sees them, in bounded time and size.

Each method is one read-only transaction with the rights of ``letta_reader``, where the indexer's user may take them on
(a superuser, or who was granted the role), and with a time limit for each statement. That private spaces never show
does not hang on it: every statement asks for public rows only. Raises what :class:`indexer.store.Store` does; its
DatabaseTooSlow where a statement ran into its limit.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from indexer.store import Store
from indexer.store.connection import Connection, fetch
from indexer.store.statements import statement

STATEMENT_MILLISECONDS = 3000
ROWS = 50  # on one page
COUNTED = 10_000  # the most that is counted to say how many there are
REPOS_LOOKED_AT = 5_000  # for those in a state, at one time
CONVERSATIONS_LOOKED_AT = 500  # of one account, to count those of an agent; as many of its stale prompts
TEXT_SHOWN = 4_000  # characters of a text on the page of its record
TEXT_COMPARED = 262_144  # characters of a text that is compared with another

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """Rows of one page; ``more`` says that others follow after the last, ``last`` up to which key was looked."""

    rows: list[Row]
    more: bool
    last: str = ""


class Pages:
    """The questions of the page, on a connection of their own. Texts are cut to what is shown of them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Connection]:
        async with (
            self._store.connection("page") as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.fetch(statement("page_begin"), str(STATEMENT_MILLISECONDS))
            yield connection

    async def _list(self, name: str, *args: object) -> Listed:
        async with self._reading() as connection:
            return _listed(await _rows(connection, name, *args))

    async def overview(self) -> tuple[list[Row], Row]:
        """Every source, and how many repositories, agents and prompts there are, each up to ``COUNTED`` + 1."""
        async with self._reading() as connection:
            sources = await _rows(connection, "page_sources", 4 * ROWS)
            return sources, (await _rows(connection, "page_counts", COUNTED + 1))[0]

    async def stale(self, after: tuple[datetime, str, str] | None = None) -> Listed:
        """Stale prompts, the longest stale first, after (``stale_since``, did, rkey).

        Where there are more than ``COUNTED``, so many of the first accounts are looked at, and each row is ``partial``.
        """
        since, did, rkey = after or (None, None, None)
        return await self._list("page_stale", since, did, rkey, ROWS + 1, COUNTED + 1)

    async def repos(self, after: str | None, prefix: str, state: str) -> Listed:
        """Repositories by DID: those that begin with ``prefix`` and are in ``state``.

        States: ``wanted``, ``hidden``, ``current``, '' for all. Of rare ones a page may hold few or none and yet
        have ``more``: each looks at so many repositories only.
        """
        args = (after, prefix, state, REPOS_LOOKED_AT, ROWS + 1)
        async with self._reading() as connection:
            rows = await _rows(connection, "page_repos", *args)
        found = _listed([row for row in rows if row["did"] is not None])
        if found.more:
            return Listed(found.rows, True, found.rows[-1]["did"])
        return Listed(found.rows, rows[0]["looked_at"] == REPOS_LOOKED_AT, rows[0]["last"] or "")

    async def repo(self, did: str, below: str | None = None) -> tuple[Row, Listed, Listed] | None:
        """A repository, its first agents, and its conversations with keys below ``below``; None if untracked."""
        async with self._reading() as connection:
            found = await _rows(connection, "page_repo", did)
            if not found:
                return None
            agents = await _rows(connection, "page_agents", None, None, did, ROWS + 1, CONVERSATIONS_LOOKED_AT)
            conversations = await _rows(connection, "page_conversations", did, below, None, ROWS + 1)
            return found[0], _listed(agents), _listed(conversations)

    async def agents(self, after: tuple[str, str] | None, did: str | None) -> Listed:
        """Agents after (did, rkey), all or those of one account, with how many conversations and stale prompts."""
        key = after or (None, None)
        return await self._list("page_agents", *key, did, ROWS + 1, CONVERSATIONS_LOOKED_AT)

    async def agent(self, did: str, rkey: str, below: str | None = None) -> tuple[Row, Listed] | None:
        """An agent, and its conversations and prompts in its own repository below ``below``; None if there is none."""
        async with self._reading() as connection:
            found = await _rows(connection, "page_agent", did, rkey, TEXT_SHOWN)
            if not found:
                return None
            rows = await _rows(connection, "page_conversations", did, below, found[0]["uri"], ROWS + 1)
            return found[0], _listed(rows)

    async def prompt(self, did: str, rkey: str, below: tuple[str, str] | None = None) -> tuple[Row, Listed] | None:
        """A prompt and its compiles below (rev, CID), each with whether its text is ``kept``; None if there is none."""
        async with self._reading() as connection:
            found = await _rows(connection, "page_prompt", did, rkey, TEXT_SHOWN)
            if not found:
                return None
            history = _listed(await _rows(connection, "page_history", did, rkey, *(below or (None, None)), ROWS + 1))
            cids = [row["cid"] for row in history.rows]
            kept = {row["cid"] for row in await _rows(connection, "page_kept", did, rkey, cids)}
        for row in history.rows:
            row["kept"] = row["cid"] in kept
        return found[0], history

    async def texts(self, did: str, rkey: str, cids: Sequence[str]) -> dict[str, Row]:
        """The texts of these compiles of a prompt, by CID, as far as they are kept; cut to ``TEXT_COMPARED``."""
        async with self._reading() as connection:
            rows = await _rows(connection, "page_texts", did, rkey, list(cids), TEXT_COMPARED)
        return {row["cid"]: row for row in rows}


async def _rows(connection: Connection, name: str, *args: object) -> list[Row]:
    rows = [dict(row) for row in await fetch(connection, name, *args)]
    for row in rows:
        if row.get("evidence") is not None:
            row["evidence"] = json.loads(row["evidence"])
    return rows


def _listed(rows: list[Row]) -> Listed:
    """Asked for is always one row more than a page shows."""
    return Listed(rows[:ROWS], len(rows) > ROWS)
