"""The page of the real daemon: served beside the rest, with the settings that are about it."""

from __future__ import annotations

import base64
import re
from html import unescape
from pathlib import Path

import aiohttp
import pytest

from tests.daemon_process import DaemonProcess, command, daemon, eventually

TOKEN = "correct-horse-battery"
LINK = re.compile(r'<th scope="row"><a href="(/prompt\?[^"]*)"')


def arguments(database: str, capture: Path) -> tuple[str, ...]:
    """What the daemon is started with."""
    return ("--database-url", database, "--source", f"file:{capture}", "--keep-history", "content")


async def indexed(process: DaemonProcess) -> None:
    """Wait until the whole capture is in."""

    async def ended() -> bool:
        return (
            await process.metric('prompts{freshness="stale"}') is not None
            and (await process.get("/"))[1].count(">ended<") == 1
        )

    await process.ready()
    await eventually(ended)


def command_line(pid: int) -> str:
    """What a process list shows of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text("utf-8")


async def test_the_daemon_serves_the_page(database: str, pds_a: Path) -> None:
    """What it has indexed is there to be read, down to the difference of two compiles; the record's text in no log."""
    async with daemon(*arguments(database, pds_a / "frames.bin")) as process:
        await indexed(process)
        _, stale = await process.get("/stale")
        found = [unescape(url) for url in LINK.findall(stale)]
        assert len(found) == 8
        texts = [(await process.get(url))[1] for url in found]
        compared = next(url for url, text in zip(found, texts, strict=True) if "Compare old and new" in text)
        _, difference = await process.get(compared.replace("/prompt", "/difference"))
        assert "<ins>" in difference
        assert await process.stop() == 0
        assert [line for line in process.log if "CONVERSATION_ID" in str(line)] == []


async def test_the_token_guards_it_and_is_nowhere_to_be_seen(database: str, pds_a: Path, tmp_path: Path) -> None:
    """With a token in a file the page asks for it, on any address; no log line, metric or process list has it."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    given = (*arguments(database, pds_a / "frames.bin"), "--listen", "0.0.0.0:0", "--page-token-file", str(file))
    async with daemon(*given) as process:
        await process.announced()
        credentials = base64.b64encode(f"me:{TOKEN}".encode()).decode()
        assert (await process.get("/"))[0] == 401
        async with (
            aiohttp.ClientSession(process.url) as client,
            client.get("/", headers={"Authorization": f"Basic {credentials}"}) as response,
        ):
            assert response.status in (200, 503)  # the database may not have been reached yet
            assert "<h1>" in await response.text()
        assert (await process.get("/healthz"))[0] == 200
        seen = (await process.get("/metrics"))[1] + command_line(process.pid)
        assert await process.stop() == 0
        seen += str(process.log) + str(process.words)
    assert TOKEN not in seen
    assert credentials not in seen


@pytest.mark.parametrize("word", ["short", "with blanks in between"])
async def test_a_bad_token_ends_the_start(database: str, word: str) -> None:
    """A token that could be guessed is a wrong setting: exit code 2, named, not quoted."""
    ended = await command(
        "run", "--database-url", database, "--listen", "127.0.0.1:0", environment={"LETTA_INDEXER_PAGE_TOKEN": word}
    )
    assert ended.code == 2
    assert "--page-token-file: expected a token" in ended.errors
    assert word not in ended.output + ended.errors


async def test_open_to_others_and_without_a_token_there_is_no_page(database: str, pds_a: Path) -> None:
    """The daemon says so once, and goes on without."""
    async with daemon(*arguments(database, pds_a / "frames.bin"), "--listen", "0.0.0.0:0") as process:
        await process.announced()
        await process.logged("no page at /: --listen is open to others, and there is no token for it")
        assert (await process.get("/"))[0] == 404
        assert (await process.get("/healthz"))[0] == 200
        assert await process.stop() == 0
