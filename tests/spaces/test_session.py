"""The login: made when needed, renewed when it expires, given up when revoked; and no secret ever shows."""

from __future__ import annotations

import asyncio
import json
import traceback

import pytest
from aiohttp import web

from indexer.outbound import FetchFailed, Outbound
from indexer.simulator.http_faults import AlterBody, Refuse
from indexer.spaces.failures import PasswordRefused
from indexer.spaces.session import Secret, Session
from tests.spaces.logins import Login
from tests.strangers import site

CREATE, REFRESH, LIST = "createSession", "refreshSession", "listSpaces"


async def test_one_login_serves_all_calls(login: Login) -> None:
    """Nothing is asked before the first call; then one login does for all, also for calls made at the same time."""
    assert login.pds.requests == []
    spaces = await asyncio.gather(*(login.client.list_spaces() for _ in range(5)))
    assert spaces == [(login.space,)] * 5
    assert (login.pds.logins, login.pds.refreshes) == (1, 0)


async def test_expired_access_is_renewed(login: Login) -> None:
    """An access token that ran out is renewed by the refresh token, once for all who wait, and the call goes on."""
    await login.client.list_spaces()
    for round_ in (1, 2):
        login.pds.expire_access()
        await asyncio.gather(*(login.client.list_spaces() for _ in range(5)))
        assert (login.pds.logins, login.pds.refreshes) == (1, round_)


async def test_expired_refresh_signs_in_again(login: Login) -> None:
    """When the refresh token has run out too, the password is used again."""
    await login.client.list_spaces()
    login.pds.expire_access()
    login.pds.expire_refresh()
    assert await login.client.list_spaces()
    assert login.pds.logins == 2


async def test_revoked_password_is_a_clear_state_and_no_loop(login: Login) -> None:
    """Once the password is revoked every call says so, and the host isn't asked again."""
    await login.client.list_spaces()
    login.pds.revoke(login.did, login.password)
    login.pds.expire_access()
    with pytest.raises(PasswordRefused, match="refuses the app password of") as caught:
        await login.client.list_spaces()
    assert caught.value.permanent
    assert caught.value.code == "AuthenticationRequired"
    asked = len(login.pds.requests)
    for _ in range(3):
        with pytest.raises(PasswordRefused):
            await login.client.list_spaces()
    assert len(login.pds.requests) == asked


async def test_wrong_password_is_tried_once(login: Login) -> None:
    """A mistyped password costs one request, so that the account isn't locked."""
    client = login.client_with("wrong")
    for _ in range(3):
        with pytest.raises(PasswordRefused):
            await client.list_spaces()
    assert login.asked(CREATE) == 1


async def test_host_trouble_is_not_taken_for_a_refusal(login: Login) -> None:
    """A host that is overloaded at login, or at renewal, is asked again later with the same password and token."""
    fault = login.pds.inject(Refuse(CREATE, status=500, times=1))
    with pytest.raises(FetchFailed) as caught:
        await login.client.list_spaces()
    assert not isinstance(caught.value, PasswordRefused)
    login.pds.cure(fault)
    await login.client.list_spaces()
    login.pds.expire_access()
    fault = login.pds.inject(Refuse(REFRESH, status=502, times=1))
    with pytest.raises(FetchFailed):
        await login.client.list_spaces()
    login.pds.cure(fault)
    await login.client.list_spaces()
    assert (login.pds.logins, login.pds.refreshes) == (1, 1)


@pytest.mark.parametrize("status", [429, 503])
async def test_host_is_left_alone_as_long_as_it_asks(login: Login, status: int) -> None:
    """``Retry-After`` is told to the caller and kept to: the host isn't even asked meanwhile."""
    await login.client.list_spaces()
    login.pds.inject(Refuse(LIST, status=status, retry_after="700", times=1))
    with pytest.raises(FetchFailed) as caught:
        await login.client.list_spaces()
    assert caught.value.retry_after == 700
    asked = len(login.pds.requests)
    with pytest.raises(FetchFailed) as caught:
        await login.client.list_spaces()
    assert caught.value.retry_after is not None
    assert 690 < caught.value.retry_after <= 700
    assert len(login.pds.requests) == asked


async def test_token_that_never_works_is_no_loop(login: Login) -> None:
    """A host that gives tokens out and takes none is asked twice a call."""
    login.pds.inject(Refuse(LIST, status=401))
    with pytest.raises(FetchFailed, match="a token that it has just given out"):
        await login.client.list_spaces()
    assert login.asked(LIST) == 2


@pytest.mark.parametrize("did", ["did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", None])
async def test_login_of_another_account_is_refused(login: Login, did: str | None) -> None:
    """A host that logs us in as somebody else gets no further request."""
    other = (did or "").encode()
    login.pds.inject(AlterBody(CREATE, lambda body: body.replace(login.did.encode(), other)))
    with pytest.raises(FetchFailed, match="another account's"):
        await login.client.list_spaces()
    assert login.asked(LIST) == 0


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "é", "a" * 20_000, 5, None])
@pytest.mark.parametrize("name", ["accessJwt", "refreshJwt"])
async def test_tokens_that_fit_no_header_are_refused(login: Login, name: str, token: object) -> None:
    """Nothing that a host calls a token can add a header of its own, or isn't one."""
    login.pds.inject(AlterBody(CREATE, lambda body: json.dumps(json.loads(body) | {name: token}).encode()))
    with pytest.raises(FetchFailed, match="its login is none"):
        await login.client.list_spaces()
    assert login.asked(LIST) == 0


async def test_secrets_go_to_no_other_host(outbound: Outbound) -> None:
    """A redirect, of the login or of a call, is not followed: neither password nor token leaves for elsewhere."""
    elsewhere: list[str] = []

    async def thief(request: web.BaseRequest) -> web.Response:
        elsewhere.append(request.path)
        return web.json_response({})

    async with site(thief) as target:

        async def redirect(request: web.BaseRequest) -> web.Response:
            return web.Response(status=307, headers={"Location": target + request.path})

        async with site(redirect) as host:
            session = Session(outbound, host, "did:plc:a", Secret("pass"))
            with pytest.raises(FetchFailed, match="not followed with a login"):
                await session.get_json("com.example.get", max_bytes=100)
            with pytest.raises(FetchFailed, match="not followed with a login"):
                await outbound.get_json(host + "/x", bearer="token")
    assert elsewhere == []


async def test_secrets_show_nowhere(login: Login, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither password nor token is in a message, a traceback, a representation, a URL or on the console."""
    shown = [repr(login.client.session), repr(login.client.session.__dict__), repr(Secret(login.password))]
    await login.client.list_spaces()
    secrets = [login.password, *login.pds.tokens()]
    shown += [repr(login.client.session.__dict__), *login.pds.requests]
    login.pds.expire_access()
    login.pds.revoke(login.did, login.password)
    for fault in (Refuse(CREATE, status=500, times=1), None):
        if fault:
            login.pds.inject(fault)
        try:
            await login.client.list_spaces()
        except FetchFailed as error:
            shown += [str(error), repr(error), repr(error.__dict__), "".join(traceback.format_exception(error))]
    assert len(secrets) == 3
    shown += capfd.readouterr()
    assert not [text for text in shown if any(secret in text for secret in secrets)]
