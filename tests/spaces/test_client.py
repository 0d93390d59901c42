"""The calls: lists in pages, refusals by kind, and one clear sentence for a host that speaks otherwise."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from aiohttp import web

from indexer.errors import IdentityError
from indexer.identity import Resolver
from indexer.outbound import FetchFailed
from indexer.simulator.http_faults import AlterBody, BreakOff, Refuse
from indexer.simulator.plc import Directory
from indexer.simulator.service import HttpFault, refused
from indexer.spaces.account import author_key, host_of, open_account
from indexer.spaces.client import SpaceClient
from indexer.spaces.commit import Judgement, judge
from indexer.spaces.dialects import ALPHA_2026_08
from indexer.spaces.failures import SpaceUnavailable, UnknownDialect
from indexer.spaces.session import Secret, Session
from tests.spaces.logins import TYPE, Login
from tests.strangers import site

AGENT = "xyz.quasigod.lab.letta.agent/self"
LATER = replace(ALPHA_2026_08, name="a later form", list_spaces="com.atproto.space.listMySpaces")


async def test_spaces_come_in_pages(login: Login) -> None:
    """All spaces of the account are listed, whatever number the host gives at a time, and nobody else's."""
    stranger = login.network.create_account()
    login.pds.create_space(stranger.did, TYPE, "self")
    ours = {login.space} | {login.pds.create_space(login.did, TYPE, f"s{number:03}") for number in range(120)}
    assert set(await login.client.list_spaces()) == ours
    assert len([page async for page in login.client.pages()]) == 3


@pytest.mark.parametrize("spelling", ["at://{}/space/{}/self", "at:space/{}/{}/self"])
async def test_both_spellings_are_one_space(login: Login, spelling: str) -> None:
    """However a host spells a space, it is known by its canonical URI."""
    body = {"spaces": [{"uri": spelling.format(login.did, TYPE)}]}
    login.pds.inject(AlterBody("listSpaces", lambda _: json.dumps(body).encode()))
    assert await login.client.list_spaces() == (login.space,)


async def test_list_in_circles_ends(login: Login) -> None:
    """A host that gives the same cursor for ever isn't followed for ever."""
    login.pds.inject(AlterBody("listSpaces", lambda _: b'{"spaces": [], "cursor": "x"}'))
    with pytest.raises(FetchFailed, match="goes in circles"):
        await login.client.list_spaces()


async def test_latest_commit_is_that_of_the_head(login: Login) -> None:
    """The head can be asked for alone; it proves what it is the hash of."""
    login.write((AGENT, {"x": 1}))
    commit = await login.client.get_latest_commit(login.space)
    found = judge(commit, commit.hash, login.key, space=login.space, did=login.did, dialect=ALPHA_2026_08)
    assert found is Judgement.PROVEN


async def test_absence_is_no_evidence_but_a_deleted_space_is(login: Login) -> None:
    """A repository that isn't there, one that may not be read, and a space that is gone are told apart."""
    cases = [(login.space, "not_found"), (login.space + "2", "not_found")]
    for space, state in cases:
        with pytest.raises(SpaceUnavailable) as caught:
            await login.client.get_repo(space, io.BytesIO())
        assert caught.value.state == state
    login.pds.delete_space(login.space, announced=True)
    with pytest.raises(SpaceUnavailable) as caught:
        await login.client.list_repo_ops(login.space, since=None)
    assert caught.value.state == "space_deleted"
    login.pds.inject(Refuse("listRepoOps", status=403))
    with pytest.raises(SpaceUnavailable) as caught:
        await login.client.list_repo_ops(login.space, since=None)
    assert caught.value.state == "refused"


async def test_messages_name_no_space(login: Login) -> None:
    """A space's name is private: no failure's message holds it."""
    space = login.pds.create_space(login.did, TYPE, "secret-project")
    messages = []
    for fault in (None, Refuse("getRepo", status=403), Refuse("getRepo", status=500), Refuse("getRepo", status=400)):
        if fault:
            login.pds.inject(fault)
        with pytest.raises(FetchFailed) as caught:
            await login.client.get_repo(space, io.BytesIO())
        messages.append(str(caught.value))
        if fault:
            login.pds.cure(fault)
    assert len(messages) == 4
    assert not [message for message in messages if "secret-project" in message]


@pytest.mark.parametrize("status", [404, 501])
async def test_host_without_spaces_gives_one_clear_sentence(login: Login, status: int) -> None:
    """A host that offers none of the dialects we know says so once, with what to do about it."""
    login.pds.inject(Refuse("com.atproto.space", status=status))
    with pytest.raises(UnknownDialect) as caught:
        await login.client.list_spaces()
    message = str(caught.value)
    assert message.startswith(login.pds.url)
    assert "the alpha of August 2026" in message
    assert "newer version" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "body", ['{"spaces": [{"uri": "at://x/y"}]}', '{"spaces": [{"id": 1}]}', '{"items": []}', "[]"]
)
async def test_lists_of_another_form_are_another_dialect(login: Login, body: str) -> None:
    """A list we can't read isn't an empty one."""
    login.pds.inject(AlterBody("listSpaces", lambda _: body.encode()))
    with pytest.raises(FetchFailed):
        await login.client.list_spaces()


async def test_method_that_goes_away_is_another_dialect(login: Login) -> None:
    """A host that was updated under way no longer answers: the sentence is the same."""
    await login.client.list_spaces()
    login.pds.inject(_Missing("listRepoOps"))
    with pytest.raises(UnknownDialect):
        await login.client.list_repo_ops(login.space, since=None)


async def test_dialect_is_what_the_host_answers(login: Login) -> None:
    """Of several dialects the first that the host answers in is spoken, and it is found out once."""
    client = SpaceClient(login.client.session, dialects=(LATER, ALPHA_2026_08))
    for _ in range(2):
        assert await client.dialect() is ALPHA_2026_08
    assert login.asked("listMySpaces") == 1
    assert await client.list_spaces() == (login.space,)


async def test_download_that_breaks_off_is_no_repository(login: Login) -> None:
    """A CAR that ends before its announced length is a failed request; the next one starts with an empty file."""
    login.write((AGENT, {"x": "y" * 5000}))
    spool = io.BytesIO()
    login.pds.inject(BreakOff("getRepo", times=1))
    with pytest.raises(FetchFailed):
        await login.client.get_repo(login.space, spool)
    size = await login.client.get_repo(login.space, spool)
    assert len(spool.getvalue()) == size


async def test_login_that_expired_during_a_download_is_renewed(login: Login) -> None:
    """The token is renewed for downloads too."""
    login.write((AGENT, {"x": 1}))
    await login.client.list_spaces()
    login.pds.expire_access()
    assert await login.client.get_repo(login.space, io.BytesIO()) > 0
    assert (login.pds.logins, login.pds.refreshes) == (1, 1)


async def test_account_by_did_and_by_handle(login: Login) -> None:
    """A DID, or a handle that leads to it, opens the account on the host that its document names."""
    login.account.handle = "owner.test"

    async def texts(name: str) -> list[str]:
        return [f"did={login.did}"] if name == "_atproto.owner.test" else []

    async with Directory(login.network) as plc:
        resolver = Resolver(login.outbound, plc.url, texts=texts)
        for name in (login.did, "owner.test", "@Owner.test"):
            client = await open_account(login.outbound, resolver, name, Secret(login.password))
            assert await client.list_spaces() == (login.space,)
        assert await author_key(resolver, login.did) == login.key
        for name in ("nobody", "did:web", ""):
            with pytest.raises(IdentityError):
                await open_account(login.outbound, resolver, name, Secret("x"))
        identity = replace(await resolver.resolve(login.did), pds=None)
        with pytest.raises(IdentityError, match="names no PDS"):
            host_of(identity)


async def test_calls_carry_the_login_and_the_own_repository(login: Login) -> None:
    """What is asked of the host is the lexicon's: space, repo, since, limit, cursor, and the Authorization header."""
    seen: list[tuple[str, dict[str, str]]] = []

    async def host(request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            return web.json_response({"accessJwt": "token", "refreshJwt": "r", "did": login.did})
        seen.append((request.headers["Authorization"], dict(request.query)))
        return web.json_response({"ops": [], "spaces": []})

    async with site(host) as url:
        client = SpaceClient(Session(login.outbound, url, login.did, Secret("p")))
        await client.list_repo_ops(login.space, since="2222222222222", cursor="c/0")
    where = {"space": login.space, "repo": login.did, "limit": "1000", "since": "2222222222222", "cursor": "c/0"}
    assert seen == [("Bearer token", {}), ("Bearer token", where)]


class _Missing(HttpFault):
    """The server no longer knows a method."""

    def __init__(self, part: str) -> None:
        self._part = part

    def wants(self, request: web.Request) -> bool:
        return self._part in request.path

    async def answer(self, request: web.Request, proceed: object) -> web.StreamResponse:
        return refused("MethodNotImplemented", "Method Not Implemented", status=501)
