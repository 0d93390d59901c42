"""What is private is not on the page, whoever the indexer's user in the database is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import aiohttp
import pytest

from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION
from indexer.page.shown import link
from indexer.store.pages import Pages
from indexer.store.spaces import Spaces
from tests.indexing import Sql
from tests.page.garden import ROSA
from tests.page.site import KINDS, Site, garden_site
from tests.spaces.letta import agent, conversation, prompt
from tests.spaces.test_store import move
from tests.store.batches import NOW, change

CANARY = "secret"  # in everything of the space; nothing public has it
AUTHOR = "did:plc:secretauthorsecretauthor"
SPACE = f"at://{AUTHOR}/space/com.secret.space/secret"
OWNER = "sees_everything"


@pytest.fixture
async def site(database: str) -> AsyncIterator[Site]:
    """The page over public records, and a space that a stranger and Rosa have records in, stale prompts among them."""
    async with garden_site(database) as site:
        spaces = Spaces(site.store)
        for did in (AUTHOR, ROSA):
            repo = f"{SPACE}/{did}"
            rows = [
                change(AGENT, "secret", agent("secret new"), space=SPACE, did=did),
                change(
                    CONVERSATION, "secret", conversation(f"{repo}/{AGENT}/secret", title="secret"), space=SPACE, did=did
                ),
                change(
                    COMPILED_PROMPT,
                    "secret",
                    prompt(f"{repo}/{AGENT}/secret", "secret", repo=repo),
                    space=SPACE,
                    did=did,
                ),
            ]
            await spaces.move(move(None, 1, *rows, space=SPACE, did=did), NOW)
            await spaces.note(did, SPACE, "waiting", "secret", NOW)
        yield site


def asked() -> list[str]:
    """Every kind of page, and those that ask for what is private by name."""
    named = [
        link(path, did=did, rkey="secret") for path in ("/agent", "/prompt", "/difference") for did in (AUTHOR, ROSA)
    ]
    return [
        *KINDS.values(),
        *named,
        link("/repo", did=AUTHOR),
        link("/agents", of=AUTHOR),
        f"/repos?prefix={quote(ROSA)}",
    ]


async def seen(site: Site) -> list[str]:
    """The text of each of these pages, without the words that were asked for."""
    async with aiohttp.ClientSession(site.url) as client:
        texts = []
        for path in asked():
            async with client.get(path) as response:
                texts.append((await response.text()).replace(AUTHOR, "").replace(quote(AUTHOR, safe=""), ""))
    return texts


async def test_spaces_are_not_on_the_page(site: Site, sql: Sql) -> None:
    """No page shows a word of a space, not asked for by name either, and none counts what is in it."""
    assert await sql.fetchval("select count(*) from letta.record where space <> ''") == 6
    texts = await seen(site)
    assert [path for path, text in zip(asked(), texts, strict=True) if CANARY in text] == []
    _, counts = await Pages(site.store).overview()
    assert counts == {"repos": 2, "wanted": 0, "agents": 3, "prompts": 4, "stale": 2}


async def test_nor_where_the_database_would_show_them(site: Site, sql: Sql) -> None:
    """A user who may see everything and not become letta_reader (as owners of tables are) shows what is public only.

    There no policy binds, so it is the page's own statements that keep to it.
    """
    await sql.execute(f"""
        create role {OWNER} bypassrls;
        grant usage on schema letta, letta_store to {OWNER};
        grant select on all tables in schema letta, letta_store to {OWNER};
    """)
    try:
        async with site.store.connection("page") as connection:
            await connection.execute(f"set session authorization {OWNER}")
        async with Pages(site.store)._reading() as connection:
            assert await connection.fetchval("select current_user") == OWNER
            assert await connection.fetchval("select count(*) from letta.record where space <> ''") == 6
        texts = await seen(site)
        assert [path for path, text in zip(asked(), texts, strict=True) if CANARY in text] == []
        assert any("third bed" in text for text in texts)
        async with site.store.connection("page") as connection:
            assert await connection.fetchval("select session_user") == OWNER
            await connection.execute("reset session authorization")
    finally:
        await sql.execute(f"drop owned by {OWNER}; drop role {OWNER}")
