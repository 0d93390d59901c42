"""The daemon as a process on an account's spaces: with an app password, a directory and a host, as its users run it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from indexer.simulator.http_faults import AlterBody, BreakOff, Refuse
from indexer.simulator.plc import Directory
from tests.daemon_process import DaemonProcess, Outcome, command, daemon, eventually
from tests.indexing import Sql
from tests.spaces.followed import Followed, followed
from tests.spaces.letta import AGENT_PATH, PROMPT_PATH, agent, prompt
from tests.spaces.test_index import start

VARIABLE = "LETTA_INDEXER_SPACE_PASSWORD"
LISTEN = ("--listen", "127.0.0.1:0")


class Site:
    """An account with a space, a directory that knows it, and the arguments that lead there."""

    def __init__(self, login: Followed, directory: Directory, database: str) -> None:
        self.login = login
        self.environment = {VARIABLE: login.password}
        self.arguments = (
            *("--database-url", database, "--plc-url", directory.url, "--allow-private-hosts"),
            *("--space-account", login.did, "--log-level", "debug", "--log-format", "json"),
        )

    async def once(self, *more: str, password: bool = True) -> Outcome:
        """``run --once``, with the password in the environment or without."""
        environment = self.environment if password else {}
        return await command("run", "--once", *LISTEN, *self.arguments, *more, environment=environment)

    def told(self, text: str) -> list[str]:
        """What of the spaces, the account or its password a text names."""
        login = self.login
        words = (login.did, login.space, "/space/", AGENT_PATH, PROMPT_PATH, login.password, login.account.handle)
        return [word for word in (*words, *login.pds.tokens()) if word in text]


@pytest.fixture
async def site(database: str, sql: Sql) -> AsyncIterator[Site]:
    """Everything a daemon needs to follow an account's spaces."""
    async with followed(database, sql) as login, Directory(login.network) as directory:
        yield Site(login, directory, database)


async def test_once_reads_every_repository_of_every_space(site: Site) -> None:
    """With an app password alone, from the environment, the account's records are in, proven; nothing tells of them."""
    start(site.login)
    other = site.login.pds.create_space(site.login.did, "com.example.kind", "other")
    site.login.write((AGENT_PATH, agent()), space=other)
    outcome = await site.once()
    assert (outcome.code, site.told(outcome.output + outcome.errors)) == (0, [])
    await site.login.is_true()
    assert set((await site.login.states()).values()) == {"ended"}


async def test_password_from_a_file_and_only_some_spaces(site: Site, tmp_path: Path) -> None:
    """The password may be in a file; ``--spaces`` narrows by a space's type or its URI, in either spelling."""
    other = site.login.pds.create_space(site.login.did, "com.example.kind", "other")
    third = site.login.pds.create_space(site.login.did, "com.example.third", "other")
    for space in (site.login.space, other, third):
        site.login.write((AGENT_PATH, agent()), space=space)
    file = tmp_path / "password"
    file.write_text(f"{site.login.did} {site.login.password}\n")
    spelled = other.replace(f"at://{site.login.did}/space/", f"at:space/{site.login.did}/")
    wanted = ("--spaces", "com.example.third", "--spaces", spelled)
    outcome = await site.once("--space-password-file", str(file), *wanted, password=False)
    assert (outcome.code, site.told(outcome.output + outcome.errors)) == (0, [])
    assert {uri.rsplit("/", 3)[0] for uri in await site.login.rows()} == {other, third}


async def test_a_restart_goes_on_from_the_stored_rev(site: Site) -> None:
    """The second run asks for what happened since the first and loads nothing again."""
    uri = start(site.login)
    assert (await site.once()).code == 0
    site.login.write((PROMPT_PATH, prompt(uri, system="new")))
    site.login.pds.requests.clear()
    assert (await site.once()).code == 0
    await site.login.is_true()
    assert not any("getRepo" in request for request in site.login.pds.requests)
    assert any("since=3" in request for request in site.login.pds.requests)


async def test_a_refused_password_fails_once(site: Site) -> None:
    """A revoked password is exit code 1 and a state of its own in letta.source; what was indexed stays."""
    start(site.login)
    assert (await site.once()).code == 0
    site.login.pds.revoke(site.login.did, site.login.password)
    outcome = await site.once()
    assert (outcome.code, site.told(outcome.output + outcome.errors)) == (1, [])
    assert (await site.login.states())[f"space:{site.login.did}"] == "refused"
    await site.login.is_true()


async def test_a_host_that_stays_away_fails_once(site: Site) -> None:
    """After three tries in vain, or where the host wants to be left alone for long, ``--once`` ends with 1."""
    start(site.login)
    faults = [
        Refuse("getRepo", status=500),
        Refuse("listSpaces", status=503, retry_after="3600"),
        AlterBody("getRepo", lambda body: body[:-9]),
    ]
    for fault in faults:
        site.login.pds.inject(fault)
        outcome = await site.once()
        assert (outcome.code, site.told(outcome.output + outcome.errors)) == (1, [])
        assert "waiting" in (await site.login.states()).values()
        assert await site.login.rows() == {}
        site.login.pds.cure(fault)
    assert (await site.once()).code == 0
    await site.login.is_true()


@pytest.mark.parametrize(
    ("more", "says"),
    [((), "an app password is needed"), (("--space-password-file", "nowhere"), "cannot read nowhere")],
)
async def test_no_password_is_a_usage_error(site: Site, more: tuple[str, ...], says: str) -> None:
    """Without a password that can be read the daemon doesn't start: exit code 2, and a sentence that says why."""
    outcome = await site.once(*more, password=False)
    assert outcome.code == 2
    assert says in outcome.errors


async def test_the_password_is_no_flag(site: Site) -> None:
    """A password can't be given where every user of the machine could read it."""
    outcome = await site.once("--space-password", site.login.password, password=False)
    assert outcome.code == 2


async def test_followed_live_through_trouble_and_nothing_tells(site: Site) -> None:
    """While it runs, what is written appears, whatever the host does in between; no log, metric or answer names it."""
    uri = start(site.login)
    async with daemon(*site.arguments, environment=site.environment) as process:
        await process.ready()
        await appears(site, process)
        for fault in (
            Refuse("listRepoOps", status=429, retry_after="1", times=1),
            BreakOff("listRepoOps", fraction=0.5, times=1),
            AlterBody("listRepoOps", lambda _: b'{"ops": 5}', times=1),
        ):
            site.login.pds.inject(fault)
            site.login.write((PROMPT_PATH, prompt(uri, memory=str(fault.injected) + type(fault).__name__)))
            await appears(site, process)
            site.login.pds.expire_access()  # the next look begins with a refusal
            renewed = sum("refreshSession" in request for request in site.login.pds.requests)
            await site.login.pds.requested("refreshSession", renewed + 1)
        await process.ready()
        site.login.pds.revoke(site.login.did, site.login.password)
        site.login.pds.expire_access()
        await process.logged("spaces given up")
        assert await process.reasons() == ["source space is refused"]
        told = [(await process.get(path))[1] for path in ("/metrics", "/readyz", "/healthz")]
        assert 'source="space"' in told[0]
        assert await process.stop() == 0
        told += [str(line) for line in process.log] + process.words
    assert site.told("\n".join(told)) == []
    assert (await site.login.states())[site.login.source] == "refused"


async def appears(site: Site, process: DaemonProcess) -> None:
    """Wait until the rows are the host's."""
    repository = site.login.pds.repositories[site.login.space, site.login.did]
    truth = {f"{site.login.space}/{site.login.did}/{path}": held.cid for path, held in repository.records.items()}

    async def equal() -> bool:
        assert process.running
        return await site.login.rows() == truth

    await eventually(equal)
    await site.login.is_true()


async def test_a_stop_is_a_state(site: Site) -> None:
    """A daemon that is stopped says so in letta.source, and ends with 0."""
    start(site.login)
    async with daemon(*site.arguments, environment=site.environment) as process:
        await appears(site, process)
        assert await process.stop() == 0
    assert set((await site.login.states()).values()) == {"stopped"}


async def test_two_daemons_do_not_harm_one_another(site: Site) -> None:
    """Two that follow the same spaces into one database end with the host's records, each once in the history."""
    uri = start(site.login)
    async with (
        daemon(*site.arguments, environment=site.environment) as one,
        daemon(*site.arguments, environment=site.environment) as other,
    ):
        for number in range(4):
            await appears(site, one)
            site.login.write((PROMPT_PATH, prompt(uri, memory=str(number))), (AGENT_PATH, agent(str(number))))
        await appears(site, other)
        assert [await one.stop(), await other.stop()] == [0, 0]
    cids = [
        one.cid for one in site.login.pds.repositories[site.login.space, site.login.did].log if one.path == PROMPT_PATH
    ]
    rows = await site.login.sql.fetch("select cid from letta.recompile order by rev")
    assert [row["cid"] for row in rows] == cids


async def test_what_is_forgotten_stays_away(site: Site) -> None:
    """``forget SPACE_URI``, in either spelling, takes a space out of the index, and no run brings it back."""
    login = site.login
    start(login)
    other = login.pds.create_space(login.did, "com.example.kind", "other")
    login.write((AGENT_PATH, agent()), space=other)
    assert (await site.once()).code == 0
    spelled = login.space.replace(f"at://{login.did}/space/", f"at:space/{login.did}/")
    assert (await command("forget", spelled, *site.arguments[:2])).code == 0
    for _ in range(2):
        assert {uri.rsplit("/", 3)[0] for uri in await login.rows()} == {other}
        assert set(await login.states()) == {f"space:{other}#{login.did}", f"space:{login.did}"}
        assert await login.sql.fetch("select from letta.repo where space = $1", login.space) == []
        login.write((AGENT_PATH, agent("new")))
        assert (await site.once()).code == 0
