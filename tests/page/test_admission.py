"""Who may see the page: this machine, or who has the token; and nobody learns more than that."""

from __future__ import annotations

import base64
import hmac
from pathlib import Path

import aiohttp
import pytest
from pydantic import SecretStr

from indexer.config_values import Listen
from indexer.errors import SettingsError
from indexer.page.admission import Admission, is_local, token_of
from tests.page.site import served

TOKEN = "correct-horse-battery"


def basic(credentials: str) -> dict[str, str]:
    """What a browser sends for ``USER:PASSWORD``."""
    return {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


def status(listen: str, token: str | None, **headers: str) -> int:
    """How a request with these headers is answered, 200 if it is let in."""
    refusal = Admission(Listen(listen, 0), None if token is None else SecretStr(token)).refusal(headers)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST")),
        *((host, False) for host in ("0.0.0.0", "::", "192.0.2.1", "example.com", "localhost.example.com")),
    ],
)
def test_the_page_is_off_where_others_can_connect(host: str, local: bool) -> None:
    """Without a token there is a page on loopback alone; with one there is everywhere."""
    assert is_local(host) is local
    assert Admission(Listen(host, 0), None).on is local
    assert Admission(Listen(host, 0), SecretStr(TOKEN)).on


@pytest.mark.parametrize("host", ["localhost", "localhost:9464", "127.0.0.1:1", "[::1]:8000", "LocalHost:80"])
def test_local_names_are_let_in(host: str) -> None:
    """Any port will do: it may have been forwarded."""
    assert status("127.0.0.1", None, Host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["", "example.com", "127.0.0.1.example.com", "localhost.example.com:9464", "a@evil", "[::1", "evil:localhost"],
)
def test_a_name_that_only_leads_here_is_not_let_in(host: str) -> None:
    """A stranger's site can't have its visitors' browsers read the page under its own name."""
    assert status("127.0.0.1", None, Host=host) == 421


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        (basic(f":{TOKEN}"), 200),
        (basic(f"anybody:{TOKEN}"), 200),
        ({"Authorization": basic(f":{TOKEN}")["Authorization"].replace("Basic", "bAsIc")}, 200),
        ({}, 401),
        (basic(TOKEN), 401),
        (basic(f"{TOKEN}:"), 401),
        (basic(f":{TOKEN}x"), 401),
        (basic(f":{TOKEN[:-1]}"), 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": "Basic \u00e9\u00e9"}, 401),
        ({"Authorization": "Basic "}, 401),
    ],
)
@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_the_token_is_the_password(listen: str, headers: dict[str, str], answer: int) -> None:
    """Whoever has the token is let in, as any user and under any name; nobody else is, from this machine neither."""
    assert status(listen, TOKEN, Host="index.example", **headers) == answer


def test_comparing_takes_the_same_time_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is compared by its digest, in constant time, with or without a password at hand."""
    compared: list[tuple[int, int]] = []

    constant = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return constant(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for headers in ({}, basic(":x"), basic(f":{TOKEN}")):
        status("::", TOKEN, **headers)
    assert compared == [(32, 32)] * 3


def test_the_token_comes_from_the_file_or_the_variable(tmp_path: Path) -> None:
    """A line in a file, without its end; none is none."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token_of(None, None) is None
    for word, path in ((SecretStr(TOKEN), None), (None, file)):
        found = token_of(word, path)
        assert found is not None
        assert found.get_secret_value() == TOKEN


@pytest.mark.parametrize("word", ["", "short", "fifteen-letters", "with a blank in it somewhere", "x" * 257, "é" * 20])
def test_a_token_that_is_none_is_refused(tmp_path: Path, word: str) -> None:
    """One that could be guessed, or can't be typed, is a wrong setting, and isn't quoted."""
    file = tmp_path / "token"
    file.write_text(word)
    with pytest.raises(SettingsError, match="--page-token-file: expected a token of 16 to 256") as error:
        token_of(None, file)
    assert not word or word not in str(error.value)


def test_a_missing_file_is_a_wrong_setting(tmp_path: Path) -> None:
    """The page doesn't silently go without its token."""
    with pytest.raises(SettingsError, match="--page-token-file: cannot read"):
        token_of(None, tmp_path / "nothing")


async def test_off_means_not_found(database: str) -> None:
    """Where the page is off its paths are as unknown as any other, and everything else is as it was."""
    async with served(database, listen="0.0.0.0") as site, aiohttp.ClientSession(site.url) as client:
        for path, answer in {"/": 404, "/stale": 404, "/page.css": 404, "/healthz": 200, "/metrics": 200}.items():
            async with client.get(path) as response:
                assert response.status == answer, path


async def test_without_the_token_nothing_is_shown(database: str) -> None:
    """Every path of the page asks for it; what is for machines does not."""
    async with served(database, listen="0.0.0.0", token=TOKEN) as site, aiohttp.ClientSession(site.url) as client:
        for path in ("/", "/repos", "/page.css", "/stale?nonsense"):
            async with client.get(path) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"].startswith("Basic ")
                assert TOKEN not in await response.text()
        async with client.get("/", headers=basic(f":{TOKEN}")) as response:
            assert response.status == 200
        async with client.get("/readyz") as response:
            assert response.status == 200


async def test_a_foreign_name_is_refused_before_anything_is_read(database: str) -> None:
    """DNS rebinding gets 421 on every path of the page, and no more."""
    async with served(database) as site, aiohttp.ClientSession(site.url) as client:
        for path in ("/", "/agents", "/page.css"):
            async with client.get(path, headers={"Host": "evil.example"}) as response:
                assert (response.status, await response.text()) == (421, "the page answers to localhost only\n")
