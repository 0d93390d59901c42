"""Secrets are told to nobody: not in what the daemon writes, serves or stores, in no error, in no list of processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from itertools import cycle, product
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web

from indexer.config import Settings, flag_name, has_flag, is_secret, load_settings, variable_name
from indexer.errors import SettingsError
from indexer.simulator import Relay
from indexer.simulator.http_faults import RequestFault
from indexer.simulator.plc import Directory
from indexer.simulator.service import Handler
from tests.daemon_process import Outcome, command, daemon, eventually
from tests.indexing import Sql
from tests.privilege.conftest import PASSWORD, Logins, as_role, name_of
from tests.privilege.telling import asked, command_lines, found, kept, said
from tests.spaces.followed import Followed, followed
from tests.spaces.test_index import start

SECRETS = {name: f"s3cret~{name}/of:the-tests" for name in Settings.model_fields if is_secret(name)}
QUERY = "s3cret-in-a-query"  # of a source's URL
FORMATS = ("json", "console")
NOWHERE = "postgresql://letta:{}@127.0.0.1:1/letta"


def variables(database: str, **more: str) -> dict[str, str]:
    """Every secret there is, in the environment; the database's is the password in its URL."""
    values = SECRETS | {"database_url": database} | more
    return {variable_name(name): value for name, value in values.items()}


def with_password(url: str) -> str:
    """The database's URL with a password, which a server that knows its users by the system doesn't ask for."""
    return as_role(url, url.partition("://")[2].partition("@")[0], SECRETS["database_url"])


class Echo(RequestFault):
    """The host answers with everything it was told: body, headers, query."""

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """A refusal that quotes the request wherever it can."""
        told = f"{await request.text()} {dict(request.headers)} {request.path_qs}"
        headers = {"X-Told": told.replace("\n", " "), "Retry-After": told.replace("\n", " ")}
        return web.json_response({"error": told, "message": told, "detail": {told: told}}, status=500, headers=headers)


@pytest.fixture
async def login(database: str, sql: Sql) -> AsyncIterator[Followed]:
    """An account with a space and an app password."""
    async with followed(database, sql) as login:
        start(login)
        yield login


def arguments(login: Followed, directory: Directory, log_format: str) -> tuple[str, ...]:
    """A daemon on everything that takes a secret, as talkative as it gets."""
    return (
        *("--plc-url", directory.url, "--allow-private-hosts", "--space-account", login.did),
        *("--trust", "verify", "--log-level", "debug", "--log-format", log_format),
    )


@pytest.mark.parametrize("log_format", FORMATS)
async def test_nothing_tells_a_secret(login: Followed, database: str, sql: Sql, log_format: str) -> None:
    """With every secret in use, and a host that quotes what it was told, none is written, served, stored or listed."""
    echoes = [
        login.pds.inject(Echo(part, times=1)) for part in ("createSession", "listSpaces", "getRepo", "listRepoOps")
    ]
    async with Directory(login.network) as directory, Relay() as relay:
        environment = variables(
            with_password(database), space_password=login.password, source=f"{relay.url}/?key={QUERY}"
        )
        async with daemon(*arguments(login, directory, log_format), environment=environment) as process:
            await process.announced()
            told = await asked(process)

            async def settled() -> bool:
                told.extend(await kept(sql))
                return all(echo.injected for echo in echoes) and await live(sql)

            await eventually(settled)
            login.pds.expire_access()
            login.pds.expire_refresh()
            asked_before = sum("createSession" in request for request in login.pds.requests)
            await login.pds.requested("createSession", asked_before + 1)
            login.pds.revoke(login.did, login.password)
            login.pds.expire_access()
            await eventually(lambda: refused(sql))
            told += [*await asked(process), *await kept(sql), *command_lines(process.pid).values()]
            assert await process.stop() == 0
            told += said(process)
    secrets = [*SECRETS.values(), QUERY, login.password, *login.pds.tokens()]
    assert len(secrets) > 6
    assert found(secrets, told) == []


async def live(sql: Sql) -> bool:
    """Whether all that is followed is."""
    states = [row["state"] for row in await sql.fetch("select state from letta.source where source like 'space:%'")]
    return len(states) > 1 and set(states) == {"live"}


async def refused(sql: Sql) -> bool:
    """Whether the account's password was given up."""
    return bool(await sql.fetchval("select true from letta.source where state = 'refused'"))


async def test_a_database_that_fails_is_told_without_its_password(
    database: str, logins: Logins, tmp_path: Path
) -> None:
    """No server, a server that refuses the password, a URL that is none: the sentence is there, the password isn't."""
    secret, escaped = SECRETS["database_url"], quote(SECRETS["database_url"], safe="")
    urls = {
        NOWHERE.format(escaped): 3,
        as_role(database, name_of(await logins.role(database)), secret): 3,
        NOWHERE.format(escaped) + "?sslmode=nonsense": 3,
        NOWHERE.format(secret): 2,  # its slash ends the host, and makes a port of the password
        f"mysql://letta:{escaped}@h/d": 2,
    }
    for (url, code), log_format in zip(urls.items(), cycle(FORMATS), strict=False):
        outcome = await once(url, tmp_path, "--log-level", "debug", "--log-format", log_format)
        assert (outcome.code, found([secret, secret.partition("/")[0]], outcome[1:])) == (code, []), url
        assert outcome.errors.strip()


async def once(database: str, capture: Path, *more: str) -> Outcome:
    """``run --once`` on this database and an empty capture with every secret in the environment."""
    file = capture / "frames.bin"
    file.touch()
    listen = ("--listen", "127.0.0.1:0", "--source", f"file:{file}")
    return await command("run", "--once", *listen, *more, environment=variables(database))


async def test_a_role_without_rights_is_told_so_without_its_password(
    database: str, logins: Logins, tmp_path: Path
) -> None:
    """PostgreSQL's own words about a right that is missing are passed on without what the role signed in with."""
    url = await logins.role(database)
    outcome = await once(url, tmp_path)
    assert outcome.code == 3  # it may sign in, but owns nothing
    assert found([PASSWORD], outcome[1:]) == []


URLS = ("plc_url", "relay_url", "source", "database_url")


@pytest.mark.parametrize("name", URLS)
def test_a_url_with_a_login_is_not_quoted(name: str) -> None:
    """A user name and password where none is allowed are refused by a sentence that holds neither."""
    for scheme, end in product(("https", "wss", "jetstream+wss", "x"), ("", ":0", ":x", "/ ", "?a=b@c", "#@")):
        url = f"{scheme}://user:{QUERY}@h{end}"
        with pytest.raises(SettingsError) as caught:
            load_settings({}, {variable_name(name): url}, None)
        assert QUERY not in str(caught.value), url
        assert variable_name(name) in str(caught.value)


@pytest.mark.parametrize("name", ["plc_url", "relay_url"])
async def test_a_daemon_given_such_a_url_ends(name: str) -> None:
    """It is a usage error, whose sentence alone is written."""
    outcome = await command("run", environment={variable_name(name): f"https://user:{QUERY}@h"})
    assert (outcome.code, found([QUERY], outcome[1:])) == (2, [])


@pytest.mark.parametrize("name", SECRETS)
def test_a_setting_that_is_wrong_is_not_quoted(name: str, tmp_path: Path) -> None:
    """A secret of the wrong type or form, from a file or the environment, is refused without being quoted."""
    secret = 7310586294
    for written in (f"{secret}", f'["{secret}"]', f'{{ a = "{secret}" }}', "true"):
        file = tmp_path / "letta-indexer.toml"
        file.write_text(f"{name} = {written}\n")
        with pytest.raises(SettingsError) as caught:
            load_settings({}, {}, file)
        assert str(secret) not in str(caught.value)
        assert name in str(caught.value)


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_has_to_be_on_the_command_line(name: str, tmp_path: Path) -> None:
    """Each secret can come from the environment and from a file; none is a flag, but for a URL that can do without."""
    value = "postgresql:///x" if name == "database_url" else "x" * 20
    file = tmp_path / "letta-indexer.toml"
    file.write_text(f'{name} = "{value}"\n')
    for settings in (load_settings({}, {variable_name(name): value}, None), load_settings({}, {}, file)):
        assert getattr(settings, name).get_secret_value() == value
        assert value not in f"{settings!r} {settings} {settings.model_dump()}"
    assert not has_flag(name) or name == "database_url"


async def test_secrets_are_not_flags() -> None:
    """Given as flags all the same, secrets are a usage error, and not quoted even then."""
    for name, secret in SECRETS.items():
        if not has_flag(name):
            outcome = await command("run", flag_name(name), secret)
            assert (outcome.code, found([secret], outcome[1:])) == (2, [])


async def test_a_broken_schema_ends_without_a_word_too_many(database: str, sql: Sql) -> None:
    """A database that breaks under the daemon ends it with 3 and a sentence that holds no secret."""
    async with Relay() as relay:
        environment = variables(with_password(database), source=relay.url)
        async with daemon("--trust", "relay", "--log-level", "debug", environment=environment) as process:
            await process.ready()
            told = command_lines(process.pid)
            await sql.execute("alter table letta_store.cursor rename column source to broken")
            assert await process.ended() == 3
            assert process.words
            assert found(SECRETS.values(), [*said(process), *told.values()]) == []


CRASH = """
import sys
from indexer import cli, daemon, errors
from indexer.store import Store

async def open(self):
    url = await self._dsn()
    try:
        {fault}
    except Exception as cause:
        raise RuntimeError(f"while connecting to {{url}}") from cause

Store.open = open
sys.argv = ["letta-indexer", "run", "--source", "file:{source}", "--listen", "127.0.0.1:0"]
cli.main()
"""


@pytest.mark.parametrize("fault", ["raise KeyError(url)", "raise ExceptionGroup(url, [ValueError(url)])", "int(url)"])
async def test_a_fault_of_our_own_shows_its_place_alone(fault: str, tmp_path: Path) -> None:
    """A crash that nobody foresaw says where it was, with causes, and not what was in the variables or messages."""
    url = NOWHERE.format(quote(SECRETS["database_url"], safe=""))
    (tmp_path / "frames.bin").touch()
    program = CRASH.format(fault=fault, source=tmp_path / "frames.bin")
    environment = {**os.environ, **variables(url), "LETTA_INDEXER_CONFIG": os.devnull}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = (part.decode() for part in await process.communicate())
    assert process.returncode == 1
    assert "RuntimeError: (message withheld" in errors
    assert "which led to:" in errors
    assert found(SECRETS.values(), [output, errors]) == []


FAULTS = """
import sys, threading
from indexer import logs
logs.report_faults(sys.stderr)

class Fragile:
    def __repr__(self): return "{secret}"
    def __del__(self): raise ValueError("{secret}")

def fail(): raise ValueError("{secret}")

thread = threading.Thread(target=fail)
thread.start()
thread.join()
Fragile()
fail()
"""


async def test_faults_nobody_handles_are_told_without_their_words() -> None:
    """In a thread, in a destructor, at the top: Python's own reports, which quote, are not what is written."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FAULTS.format(secret=QUERY)), stderr=asyncio.subprocess.PIPE
    )
    errors = (await process.communicate())[1].decode()
    assert errors.count("ValueError: (message withheld") == 3
    assert QUERY not in errors


async def test_no_child_is_told_a_secret_where_others_see_it(tmp_path: Path) -> None:
    """The embedded server, psql and pg_dump get what they need by their environment: no list of processes shows it."""
    environment = variables("") | {"LETTA_INDEXER_DATA_DIR": str(tmp_path / "data"), "LETTA_INDEXER_DATABASE_URL": ""}
    seen: dict[int, str] = {}
    (tmp_path / "frames.bin").touch()
    async with daemon(
        "--source", f"file:{tmp_path / 'frames.bin'}", "--trust", "relay", environment=environment
    ) as process:
        watch = asyncio.ensure_future(watched(process.pid, seen))
        await process.announced()

        async def served() -> bool:
            return "postgres" in " ".join(seen.values())

        await eventually(served)
        watch.cancel()
        assert await process.stop() == 0
    assert found(SECRETS.values(), seen.values()) == []


@pytest.mark.parametrize("words", [("db", "psql", "--", "-c", "select pg_sleep(60)"), ("db", "dump", "{file}")])
async def test_programs_of_postgresql_are_told_by_their_environment(
    words: tuple[str, ...], tmp_path: Path, sql: Sql, database: str
) -> None:
    """While psql or pg_dump runs for us, no process's arguments hold the database's password."""
    await sql.execute("begin; lock table letta_store.account")  # pg_dump waits for it
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "indexer", *(word.format(file=tmp_path / "dump") for word in words)),
        env={**os.environ, **variables(with_password(database)), "LETTA_INDEXER_CONFIG": os.devnull},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    program = "psql" if "psql" in words else "pg_dump"
    seen: dict[int, str] = {}
    try:

        async def started() -> bool:
            seen.update(command_lines(process.pid))
            return any(is_program(line, program) for line in seen.values())

        await eventually(started)
    finally:
        await sql.execute("rollback")
        for pid in (pid for pid, line in seen.items() if is_program(line, program)):
            os.kill(pid, signal.SIGTERM)
        output, _ = await process.communicate()
    assert found(SECRETS.values(), [*seen.values(), output.decode()]) == []


def is_program(line: str, name: str) -> bool:
    """Whether a command line is of this program."""
    return Path(line.split()[0]).name == name


async def watched(pid: int, seen: dict[int, str]) -> None:
    """Note the command lines of a process and its descendants, again and again."""
    while True:
        seen.update(command_lines(pid))
        await asyncio.sleep(0.02)
