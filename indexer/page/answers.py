"""What is answered at each path of the page: what the store is asked, and the template that shows its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog
from aiohttp import hdrs, web
from pydantic import SecretStr

from indexer.config_values import Listen
from indexer.errors import DatabaseError, DatabaseTooSlow
from indexer.http import Handler, Readiness, ask_readiness
from indexer.page import asked
from indexer.page.admission import Admission, token_of
from indexer.page.asked import Parameter, Unusable, parse_query
from indexer.page.difference import Difference, compare
from indexer.page.shown import environment
from indexer.store.pages import COUNTED, TEXT_COMPARED, TEXT_SHOWN, Listed, Pages, Row

Query: TypeAlias = dict[str, str]
Facts: TypeAlias = dict[str, Any]

PAGE_SECONDS: Final = 8.0  # for one answer, waiting for its turn at the database included
POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FILES: Final = {"/page.css": "text/css; charset=utf-8", "/page.svg": "image/svg+xml"}

_log = structlog.stdlib.get_logger("indexer.page")


class Missing(Exception):
    """There is no such record, or it isn't public."""


@dataclass(frozen=True, slots=True)
class View:
    """One kind of page: its template, what its query may hold, and how its facts are found."""

    template: str
    parameters: Mapping[str, Parameter]
    facts: Callable[[Query], Awaitable[Facts]]


def page_routes(
    pages: Pages, listen: Listen, word: SecretStr | None, file: Path | None, readiness: Readiness
) -> dict[str, Handler]:
    """The page's paths and what answers them; none where it is off. ``word`` or ``file`` give the token.

    ``readiness`` gives the reasons why the daemon is not ready. Raises SettingsError for a token that is none.
    """
    admission = Admission(listen, token_of(word, file))
    if not admission.on:
        _log.info("no page at /: --listen is open to others, and there is no token for it")
        return {}
    return Page(pages, admission, readiness).routes


class Page:
    """The page over a store. Each answer is bounded in time and size; comparing texts is left to one thread."""

    def __init__(self, pages: Pages, admission: Admission, readiness: Readiness) -> None:
        self._pages = pages
        self._admission = admission
        self._readiness = readiness
        self._templates = environment()
        self._comparing = ThreadPoolExecutor(1, "compare")
        record = {"did": asked.THIS_DID, "rkey": asked.THIS_RKEY}
        self._views = {
            "/": View("overview.html", {}, self._overview),
            "/stale": View("stale.html", {"since": asked.INSTANT, "did": asked.DID, "rkey": asked.RKEY}, self._stale),
            "/agents": View("agents.html", {"of": asked.DID, "did": asked.DID, "rkey": asked.RKEY}, self._agents),
            "/agent": View("agent.html", {**record, "below": asked.RKEY}, self._agent),
            "/repos": View(
                "repos.html", {"prefix": asked.PREFIX, "state": asked.STATE, "after": asked.DID}, self._repos
            ),
            "/repo": View("repo.html", {"did": asked.THIS_DID, "below": asked.RKEY}, self._repo),
            "/prompt": View("prompt.html", {**record, "rev": asked.REV, "cid": asked.CID}, self._prompt),
            "/difference": View("difference.html", {**record, "old": asked.CID, "new": asked.CID}, self._difference),
        }

    @property
    def routes(self) -> dict[str, Handler]:
        """Every path of the page with what answers it."""
        files = {path: self._file_handler(path) for path in FILES}
        return files | {path: self._handler(view) for path, view in self._views.items()}

    def _file_handler(self, path: str) -> Handler:
        body = resources.files("indexer.page").joinpath(path[1:]).read_bytes()

        async def answer(request: web.BaseRequest) -> web.Response:
            refusal = self._admission.refusal(request.headers)
            return refusal or web.Response(body=body, headers={hdrs.CONTENT_TYPE: FILES[path]})

        return answer

    def _handler(self, view: View) -> Handler:
        async def answer(request: web.BaseRequest) -> web.Response:
            return self._admission.refusal(request.headers) or await self._answer(view, request.query_string)

        return answer

    async def _answer(self, view: View, query: str) -> web.Response:
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                facts = await view.facts(parse_query(query, view.parameters))
                return self._rendered(200, view.template, facts)
        except Unusable as error:
            return self._trouble(400, "This link is not one of ours", str(error))
        except Missing:
            return self._trouble(404, "Not here", "The index holds no such public record, or not any more.")
        except (TimeoutError, DatabaseTooSlow):
            return self._trouble(503, "That takes too long", "The database gave no answer in time. Ask for less.")
        except DatabaseError as error:
            return self._trouble(503, "The database is not available", str(error))

    def _trouble(self, status: int, title: str, sentence: str) -> web.Response:
        return self._rendered(status, "trouble.html", {"title": title, "sentence": sentence})

    def _rendered(self, status: int, template: str, facts: Facts) -> web.Response:
        text = self._templates.get_template(template).render(facts, now=datetime.now(UTC))
        return web.Response(
            status=status,
            text=text,
            headers={hdrs.CONTENT_TYPE: "text/html; charset=utf-8", "Content-Security-Policy": POLICY},
        )

    async def _overview(self, query: Query) -> Facts:
        reasons = await ask_readiness(self._readiness)
        sources, counts = await self._pages.overview()
        return {"reasons": reasons, "sources": sources, "counts": counts, "most": COUNTED}

    async def _stale(self, query: Query) -> Facts:
        after = (asked.instant(query["since"]), query["did"], query["rkey"]) if query["since"] else None
        return {"prompts": await self._pages.stale(after), "first": after is None, "most": COUNTED}

    async def _agents(self, query: Query) -> Facts:
        after = (query["did"], query["rkey"]) if query["did"] else None
        return {"agents": await self._pages.agents(after, query["of"] or None), "of": query["of"], "first": not after}

    async def _agent(self, query: Query) -> Facts:
        agent, conversations = _there(await self._pages.agent(query["did"], query["rkey"], query["below"] or None))
        return {"agent": agent, "conversations": conversations, "first": not query["below"], "most": TEXT_SHOWN}

    async def _repos(self, query: Query) -> Facts:
        repos = await self._pages.repos(query["after"] or None, query["prefix"], query["state"])
        return {"repos": repos, "prefix": query["prefix"], "state": query["state"], "first": not query["after"]}

    async def _repo(self, query: Query) -> Facts:
        repo, agents, conversations = _there(await self._pages.repo(query["did"], query["below"] or None))
        return {"repo": repo, "agents": agents, "conversations": conversations, "first": not query["below"]}

    async def _prompt(self, query: Query) -> Facts:
        below = (query["rev"], query["cid"]) if query["rev"] else None
        prompt, history = _there(await self._pages.prompt(query["did"], query["rkey"], below))
        return {"prompt": prompt, "history": history, "kept": _kept(history), "first": not below, "most": TEXT_SHOWN}

    async def _difference(self, query: Query) -> Facts:
        did, rkey = query["did"], query["rkey"]
        prompt, history = _there(await self._pages.prompt(did, rkey))
        known = _kept(history)
        new = query["new"] or (known[0] if known else "")
        old = query["old"] or (known[1] if len(known) > 1 else new)
        texts = await self._pages.texts(did, rkey, [cid for cid in (old, new) if cid])
        facts: Facts = {"prompt": prompt, "old": old, "new": new, "unknown": sorted({old, new} - texts.keys() - {""})}
        if old in texts and new in texts:
            facts["parts"] = [
                (
                    name,
                    await self._compared(texts[old], texts[new], field),
                    texts[old][f"{field}_cut"] or texts[new][f"{field}_cut"],
                )
                for name, field in (("Content", "content"), ("Core memory", "core_memory"))
            ]
        return facts | {"most": TEXT_COMPARED}

    async def _compared(self, old: Row, new: Row, field: str) -> Difference:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._comparing, compare, old[field] or "", new[field] or "")


def _there(found: Any) -> Any:
    if found is None:
        raise Missing
    return found


def _kept(history: Listed) -> list[str]:
    """The CIDs of the compiles whose text is kept, the latest first, each once."""
    return list(dict.fromkeys(row["cid"] for row in history.rows if row["kept"]))
