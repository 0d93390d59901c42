"""What is answered: right rows in bounded pages, errors in a sentence, and the machines' paths as they were."""

from __future__ import annotations

import asyncio
import re
from html import unescape

import aiohttp
import pytest

from indexer import http
from indexer.page import answers
from indexer.page.shown import link
from indexer.store import pages
from indexer.store.pages import Pages
from tests.frames import DID, account, key, rev
from tests.indexing import Sql
from tests.page.garden import BEDS, FORK, GARDENER, HIVES, KEEPER, LIBRARIAN, ROSA, SEEDS, TEO, Agent, commits
from tests.page.site import KEEPING, KINDS, Site, garden_site, served

TITLES = re.compile(r'<th scope="row"><a href="([^"]*)"')
NEXT = re.compile(r'<a href="([^"]*)" rel="next">')


async def fetched(client: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    """Status and text of the answer."""
    async with client.get(path) as response:
        return response.status, await response.text()


async def walked(client: aiohttp.ClientSession, path: str) -> list[str]:
    """Where the rows of a list lead to, page after page."""
    found: list[str] = []
    while path:
        _, text = await fetched(client, path)
        found += [unescape(url) for url in TITLES.findall(text)]
        match = NEXT.search(text)
        path = unescape(match[1]) if match else ""
    return found


async def test_every_kind_of_page_answers(database: str) -> None:
    """Each has its own title and one first heading, names its language, and can't be framed, sniffed or kept."""
    titles = set()
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        for kind, path in KINDS.items():
            async with client.get(path) as response:
                text = await response.text()
                assert response.status == (404 if kind == "trouble" else 200)
                assert response.headers["Content-Security-Policy"] == answers.POLICY
                assert response.headers["Cache-Control"] == "no-store"
                assert response.headers["Referrer-Policy"] == "no-referrer"
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert text.count("<h1") == 1
            assert '<html lang="en">' in text
            titles |= set(re.findall("<title>(.*)</title>", text))
    assert len(titles) == len(KINDS)


def test_the_policy_allows_no_script() -> None:
    """Nothing is allowed but the page's own style, picture and forms."""
    policy = dict(part.strip().split(" ", 1) for part in answers.POLICY.split(";"))
    assert policy.pop("default-src") == "'none'"
    assert "script-src" not in policy
    assert set(policy.values()) <= {"'self'", "'none'"}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/?x=1", 400),
        ("/stale?since=never", 400),
        ("/prompt", 400),
        (link("/prompt", did=DID, rkey="a", rev="A"), 400),
        ("/repo?did=did:plc:a&did=did:plc:b", 400),
        ("/stale/", 404),
        ("/page/page.css", 404),
        ("/../page.css", 200),
        (link("/prompt", did=DID, rkey="nothing"), 404),
        (link("/agent", did=DID, rkey="nothing"), 404),
        (link("/difference", did=DID, rkey="nothing"), 404),
        ("/repos?prefix=" + "a" * 4000, 400),
    ],
)
async def test_other_requests_are_refused(database: str, path: str, answer: int) -> None:
    """Unknown paths, unknown records, malformed and huge queries: told apart, and nothing of them is echoed."""
    async with served(database) as site, aiohttp.ClientSession(site.url) as client:
        status, text = await fetched(client, path)
        assert status == answer
        assert DID not in text
        assert "aaaa" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_only_reading_is_allowed(database: str, method: str) -> None:
    """Nothing can be sent to the page."""
    async with (
        served(database) as site,
        aiohttp.ClientSession(site.url) as client,
        client.request(method, "/", data=b"x") as response,
    ):
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")


async def test_lists_are_paged_by_key(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page after page every row comes once and in order, whatever the page's size."""
    monkeypatch.setattr(pages, "ROWS", 2)
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        assert await walked(client, "/stale") == [link("/prompt", did=ROSA, rkey=key) for key in (FORK, BEDS)]
        agents = [(ROSA, GARDENER), (ROSA, LIBRARIAN), (TEO, KEEPER)]
        assert await walked(client, "/agents") == [link("/agent", did=did, rkey=one.rkey) for did, one in agents]
        assert await walked(client, f"/agents?of={TEO}") == [link("/agent", did=TEO, rkey=KEEPER.rkey)]
        assert await walked(client, "/repos") == [link("/repo", did=did) for did in (ROSA, TEO)]
        conversations = [url for url in await walked(client, link("/repo", did=ROSA)) if url.startswith("/prompt")]
        assert conversations == [link("/prompt", did=ROSA, rkey=key) for key in sorted(SHOWN_OF_ROSA, reverse=True)]


SHOWN_OF_ROSA = (BEDS, FORK, SEEDS)


async def test_an_agent_has_its_conversations(database: str) -> None:
    """Those that name it and no others, each with its prompt's state; hidden ones are marked."""
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        _, text = await fetched(client, link("/agent", did=ROSA, rkey=LIBRARIAN.rkey))
        assert "Only the heirloom beans" in text
        assert "Sorting the catalogues" in text
        assert "third bed" not in text
        assert text.count(">hidden</span>") == 1
        assert text.count(">stale</span>") == 1


async def test_prompts_belong_to_the_agent_they_name(database: str) -> None:
    """With a record of their conversation or without, or with one that names another agent: each counts, once."""
    lone, strayed = key(7), key(8)
    old, new = {"memfsRevision": "1"}, {"memfsRevision": "2"}
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        stray = KEEPER.prompt(strayed, 0, "08:00:00", **old)
        await site.index.take(commits(8, KEEPER.prompt(lone, 0, "09:00:00", **old), stray))
        await site.index.take(commits(9, Agent(TEO, "other", "Other", "x").conversation(strayed, "Not the keeper's")))
        await site.index.take(commits(10, KEEPER.prompt(HIVES, 0, "11:00:00", **new)))
        _, text = await fetched(client, f"/agents?of={TEO}")
        assert re.findall(r'data-name="(Conversations|Stale prompts)"[^>]*>(?:<[^>]*>)?(\d+)', text) == [
            ("Conversations", "1"),
            ("Stale prompts", "2"),
        ]
        prompts = [link("/prompt", did=TEO, rkey=rkey) for rkey in sorted((HIVES, lone, strayed), reverse=True)]
        for path in (link("/agent", did=TEO, rkey=KEEPER.rkey), link("/repo", did=TEO)):
            assert [url for url in await walked(client, path) if url.startswith("/prompt")] == prompts
            _, text = await fetched(client, path)
            assert (text.count(">stale</span>"), text.count(">no record of it</span>")) == (2, 1)
        _, text = await fetched(client, link("/agent", did=TEO, rkey="other"))
        assert "Not here" in text


async def test_evidence_leads_to_the_record_that_says_so(database: str) -> None:
    """From a prompt, and from the list, to the agent or to the later prompt of the same agent."""
    to_agent, to_prompt = link("/agent", did=ROSA, rkey=GARDENER.rkey), link("/prompt", did=ROSA, rkey=SEEDS)
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        for path, target in ((BEDS, to_agent), (FORK, to_prompt)):
            _, text = await fetched(client, link("/prompt", did=ROSA, rkey=path))
            assert re.findall(r'data-name="The record"><a href="([^"]*)"', unescape(text)) == [target]
        _, text = await fetched(client, "/stale")
        assert f'<a href="{to_prompt}">a later prompt</a>' in unescape(text)


async def test_history_is_paged_and_any_two_compiles_compared(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiles of one prompt, two to a page; the first and the last can be compared by their CIDs."""
    monkeypatch.setattr(pages, "ROWS", 2)
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        prompt = link("/prompt", did=ROSA, rkey=BEDS)
        _, first = await fetched(client, prompt)
        match = NEXT.search(first)
        assert match is not None
        _, second = await fetched(client, unescape(match[1]))
        cids = [re.findall(r'name="new" value="(\w+)"', text) for text in (first, second)]
        assert [len(set(found)) for found in cids] == [2, 2]
        assert "full recompile" in first
        assert "first seen" in second
        _, text = await fetched(client, link("/difference", did=ROSA, rkey=BEDS, old=cids[1][1], new=cids[0][0]))
        assert "<del>evening</del>" in text
        assert "<ins>early morning</ins>" in text


async def test_texts_that_are_not_kept_are_said_to_be(database: str) -> None:
    """Without ``--keep-history content`` only the present text is there: nothing can be compared, as the page says."""
    async with served(database, limits=type(KEEPING)()) as site, aiohttp.ClientSession(site.url) as client:
        for at, memory in ((1, 0), (2, 1)):
            await site.index.take(commits(at, GARDENER.prompt(BEDS, memory, f"09:0{at}:00")))
        _, text = await fetched(client, link("/prompt", did=ROSA, rkey=BEDS))
        assert "--keep-history content" in text
        assert 'type="radio"' not in text
        status, text = await fetched(client, link("/difference", did=ROSA, rkey=BEDS, old="bunknown"))
        assert status == 200
        assert "The text of <code>bunknown</code> is not kept" in text


async def test_repositories_by_state_and_beginning(database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those wanted, hidden and current, and those whose DID begins so; rare ones are looked for part by part."""
    monkeypatch.setattr(pages, "REPOS_LOOKED_AT", 3)
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        dids = [f"did:plc:{number:024}" for number in range(9)]
        await sql.execute("insert into letta_store.account (did) select unnest($1::text[])", dids)
        await sql.execute("insert into letta_store.repo (did) select unnest($1::text[])", dids)
        await sql.execute("update letta_store.repo set want = 'fetch', want_reasons = '{gap}' where did = $1", dids[7])
        await site.index.take([account(TEO, active=False, status="deactivated")])
        assert await walked(client, "/repos?state=wanted") == [link("/repo", did=dids[7])]
        assert await walked(client, "/repos?state=hidden") == [link("/repo", did=TEO)]
        assert len(await walked(client, "/repos?state=current")) == 9
        assert await walked(client, "/repos?prefix=did:plc:r") == [link("/repo", did=ROSA)]
        assert await walked(client, "/repos?prefix=did:plc:z") == []
        _, text = await fetched(client, link("/repo", did=TEO))
        assert "deactivated" in text
        assert "Winter feed" not in text
        assert (await fetched(client, link("/prompt", did=TEO, rkey=HIVES)))[0] == 404


async def test_overview_tells_what_is_wrong(database: str) -> None:
    """Reasons for not being ready, the state of each source, and how much there is."""
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        _, text = await fetched(client, "/")
        assert "<strong>Ready.</strong>" in text
        assert ">live</span>" in text
        figures = re.findall(r"<dd>(?:<a [^>]*>)?(\d+)", text)
        assert figures == ["2", "4", "3", "2", "0"]
        site.reasons = ["source firehose:<b> is waiting"]
        _, text = await fetched(client, "/")
        assert "<strong>Not ready</strong>" in text
        assert "source firehose:&lt;b&gt; is waiting" in text


async def test_large_accounts_are_counted_up_to_a_bound(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an account has more conversations than are looked at, the numbers say that they are the least."""
    monkeypatch.setattr(pages, "CONVERSATIONS_LOOKED_AT", 2)
    monkeypatch.setattr(pages, "COUNTED", 2)
    monkeypatch.setattr(answers, "COUNTED", 2)
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        assert "at least" in (await fetched(client, "/agents"))[1]
        assert "2+" in (await fetched(client, "/"))[1]
        assert "these are of the first accounts" not in (await fetched(client, "/stale"))[1]
        for module in (pages, answers):
            monkeypatch.setattr(module, "COUNTED", 1)
        assert "There are more than 1: these are of the first accounts" in (await fetched(client, "/stale"))[1]


async def test_a_slow_database_is_cut_off(database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that waits too long is ended by the server; the page says so, and the next request is answered."""
    monkeypatch.setattr(pages, "STATEMENT_MILLISECONDS", 100)
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        async with sql.transaction():
            await sql.execute("lock table letta_store.account")
            status, text = await fetched(client, "/agents")
            assert status == 503
            assert "gave no answer in time" in text or "not available" in text
            async with client.get("/healthz") as response:
                assert response.status == 200
        assert (await fetched(client, "/agents"))[0] == 200


async def test_who_waits_too_long_for_a_turn_is_told(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests share one connection; one that gets none in time is answered that, and holds nothing up."""
    monkeypatch.setattr(answers, "PAGE_SECONDS", 0.05)
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        async with site.store.connection("page"):
            status, text = await fetched(client, "/stale")
        assert (status, "That takes too long" in text) == (503, True)
        monkeypatch.setattr(answers, "PAGE_SECONDS", 30.0)
        assert (await fetched(client, "/stale"))[0] == 200


async def test_a_readiness_check_that_hangs_is_not_waited_for(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The overview comes all the same, and says that the check gave no answer."""
    monkeypatch.setattr(http, "READINESS_SECONDS", 0.01)
    never = asyncio.Event()

    async def hang(site: Site) -> list[str]:
        await never.wait()
        return []

    monkeypatch.setattr(Site, "readiness", hang)
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        status, text = await fetched(client, "/")
        assert (status, "the readiness check gave no answer" in text) == (200, True)


async def test_reading_is_all_the_page_may(database: str) -> None:
    """Its transactions are read-only and run as letta_reader, in bounded time, and leave the connection as it was."""
    async with garden_site(database) as site:
        reading = Pages(site.store)
        async with reading._reading() as connection:
            assert await connection.fetchval("select current_user") == "letta_reader"
            assert await connection.fetchval("select current_setting('transaction_read_only')") == "on"
            assert await connection.fetchval("select current_setting('statement_timeout')") == "3s"
        async with site.store.connection("page") as connection:
            assert await connection.fetchval("select current_user") != "letta_reader"


async def test_agents_of_others_are_named(database: str) -> None:
    """A prompt may refer to an agent in another repository: its page leads there."""
    guest = Agent(ROSA, key(9), "Guest", "x")
    async with garden_site(database) as site, aiohttp.ClientSession(site.url) as client:
        await site.index.take(commits(9, guest.prompt(key(9), 0, "09:00:00", agent=KEEPER.uri)))
        _, text = await fetched(client, link("/prompt", did=ROSA, rkey=key(9)))
        assert unescape(text).count(link("/agent", did=TEO, rkey=KEEPER.rkey)) >= 1
        assert rev(9) not in text
