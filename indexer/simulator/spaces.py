"""A PDS on loopback that hosts permissioned spaces, in the dialect of the reference PDS's alpha of August 2026.

Methods ``com.atproto.space.*`` as an app-password login sees them (own repositories only), and the login itself:
``com.atproto.server.createSession`` and ``refreshSession``. What the captured exchanges don't show (the refusals of a
login, of others' repositories and of a deleted space) follows the reference PDS's other methods.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterable

from aiohttp import web

from indexer.simulator.dagcbor import Value, to_json
from indexer.simulator.network import Account, Network
from indexer.simulator.pds import CAR
from indexer.simulator.repository import Write
from indexer.simulator.service import Service, refused
from indexer.simulator.space_repository import SpaceRepository

_TID = re.compile(r"[234567a-j][234567a-z]{12}")
_METHODS = "com.atproto.space."
_LIMIT = 1000
_SPACES_LIMIT = 50


class SpacesPds(Service):
    """A host of permissioned spaces for accounts of ``network``; on entering, all accounts come to it.

    Faults of the requests are injected as everywhere (:mod:`indexer.simulator.http_faults`); those of the content are
    methods here: :meth:`expire_access`, :meth:`revoke`, :meth:`compact`, :meth:`restore`, :meth:`silence`.
    """

    def __init__(self, network: Network, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.repositories: dict[tuple[str, str], SpaceRepository] = {}
        self.spaces: dict[str, list[str]] = {}
        self.logins = 0
        self.refreshes = 0
        self._network = network
        self._passwords: dict[str, set[str]] = {}
        self._tokens: dict[str, tuple[str, str, str]] = {}  # token -> kind, DID, password
        self._expired: set[str] = set()
        self._deleted: set[str] = set()
        self._silent: set[str] = set()
        self._rng = random.Random(network.seed)

    async def __aenter__(self) -> SpacesPds:
        await super().__aenter__()
        self._network.pds = self.url
        for account in self._network.accounts.values():
            account.pds = self.url
        return self

    def routes(self) -> Iterable[web.RouteDef]:
        """What the server answers."""
        server, space = "/xrpc/com.atproto.server.", f"/xrpc/{_METHODS}"
        return [
            web.post(server + "createSession", self._create_session),
            web.post(server + "refreshSession", self._refresh_session),
            web.get(space + "listSpaces", self._list_spaces),
            web.get(space + "listRepoOps", self._list_repo_ops),
            web.get(space + "getLatestCommit", self._get_latest_commit),
            web.get(space + "getRepo", self._get_repo),
            web.get("/xrpc/{method}", _not_implemented),
        ]

    # What its users do.

    def add_app_password(self, did: str) -> str:
        """A new app password of the account."""
        text = "-".join("".join(self._rng.choices("abcdefghijklmnopqrstuvwxyz234567", k=4)) for _ in range(4))
        self._passwords.setdefault(did, set()).add(text)
        return text

    def revoke(self, did: str, password: str) -> None:
        """Take an app password back, and with it the refresh tokens that came of it."""
        self._passwords[did].discard(password)
        self._expired |= {
            token for token, (kind, *of) in self._tokens.items() if kind == "refresh" and of[1] == password
        }

    def expire_access(self) -> None:
        """Let every access token run out."""
        self._expired |= {token for token, (kind, *_) in self._tokens.items() if kind == "access"}

    def expire_refresh(self) -> None:
        """Let every refresh token run out."""
        self._expired |= {token for token, (kind, *_) in self._tokens.items() if kind == "refresh"}

    def tokens(self) -> list[str]:
        """Every token given out so far."""
        return list(self._tokens)

    def create_space(self, did: str, kind: str, key: str) -> str:
        """A new space under the authority of ``did``, who is its member; gives the space's URI."""
        uri = f"at://{did}/space/{kind}/{key}"
        self.spaces.setdefault(did, []).append(uri)
        account = self._network.accounts[did]
        self.repositories[uri, did] = SpaceRepository(uri, did, account.key, self._rng)
        return uri

    def write(self, space: str, did: str, *writes: Write) -> str:
        """Write one batch to a member's repository; gives its rev."""
        rev = self._network.rkey()
        self.repositories[space, did].write(writes, rev)
        return rev

    # What goes wrong.

    def compact(self, space: str, did: str, keep: int = 0) -> None:
        """Let the host forget all but the last ``keep`` operations of a repository's log."""
        self.repositories[space, did].compact(keep)

    def restore(self, backup: SpaceRepository) -> None:
        """Put a repository back to a copy made earlier: a host restored from its backup."""
        self.repositories[backup.space, backup.did] = backup

    def delete_space(self, space: str, *, announced: bool = False) -> None:
        """Delete a space: from then on it looks as if it had never been, or with ``announced`` is said to be gone."""
        self._silent.add(space)
        if announced:
            self._deleted.add(space)
        for listed in self.spaces.values():
            if space in listed:
                listed.remove(space)

    def silence(self, space: str, *, silent: bool = True) -> None:
        """Let the host answer for a space as if nothing were there, or stop it."""
        (self._silent.add if silent else self._silent.discard)(space)

    # What it answers.

    async def _create_session(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, password = body.get("identifier"), body.get("password")
        known = (one for one in self._network.accounts.values() if name in (one.did, one.handle))
        account = next(known, None)
        if account is None or password not in self._passwords.get(account.did, ()):
            return refused("AuthenticationRequired", "Invalid identifier or password", status=401)
        self.logins += 1
        return self._session(account, password)

    async def _refresh_session(self, request: web.Request) -> web.Response:
        token = _bearer(request)
        found = self._authorized(token, "refresh")
        if isinstance(found, web.Response):
            return found
        self.refreshes += 1
        self._expired.add(token)
        return self._session(found, self._tokens[token][2])

    def _session(self, account: Account, password: str) -> web.Response:
        tokens = {kind: self._token(kind, account.did, password) for kind in ("access", "refresh")}
        return web.json_response(
            {
                "accessJwt": tokens["access"],
                "refreshJwt": tokens["refresh"],
                "handle": account.handle,
                "did": account.did,
                "active": True,
            }
        )

    def _token(self, kind: str, did: str, password: str) -> str:
        claims = json.dumps({"scope": kind, "sub": did, "jti": self._rng.randbytes(12).hex()}).encode()
        token = f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.{self._rng.randbytes(16).hex()}"
        self._tokens[token] = kind, did, password
        return token

    def _authorized(self, token: str, kind: str) -> Account | web.Response:
        if not token:
            return refused("AuthMissing", "Authentication Required", status=401)
        if token in self._expired:
            return refused("ExpiredToken", "Token has expired")
        known = self._tokens.get(token)
        if known is None or known[0] != kind:
            return refused("InvalidToken", "Token could not be verified")
        return self._network.accounts[known[1]]

    async def _list_spaces(self, request: web.Request) -> web.Response:
        account = self._authorized(_bearer(request), "access")
        if isinstance(account, web.Response):
            return account
        limit, after = int(request.query.get("limit", _SPACES_LIMIT)), request.query.get("cursor", "")
        following = sorted(uri for uri in self.spaces.get(account.did, ()) if uri > after)
        cursor = {"cursor": following[limit - 1]} if len(following) > limit else {}
        return web.json_response({"spaces": [{"uri": uri} for uri in following[:limit]]} | cursor)

    async def _list_repo_ops(self, request: web.Request) -> web.Response:
        found = self._readable(request)
        if isinstance(found, web.Response):
            return found
        since, limit = request.query.get("since", ""), int(request.query.get("limit", _LIMIT))
        if since and not _TID.fullmatch(since):
            detail = f'Invalid {_METHODS}listRepoOps params: Invalid TID string (got "{since}")'
            return refused("InvalidRequest", detail)
        if found is None:
            return web.json_response({"ops": []})
        page = found.operations(since, request.query.get("cursor", ""), limit)
        body: dict[str, Value] = {"ops": [found.operation_json(entry) for entry in page]}
        end = {"cursor": page[-1].cursor} if len(page) == limit else {"commit": to_json(found.commit())}
        return web.json_response(body | end)

    async def _get_latest_commit(self, request: web.Request) -> web.Response:
        found = self._readable(request)
        if isinstance(found, web.Response):
            return found
        if found is None:
            return _no_repo(request)
        return web.json_response({"commit": to_json(found.commit()) | {"$type": "com.atproto.space.defs#signedCommit"}})

    async def _get_repo(self, request: web.Request) -> web.Response:
        found = self._readable(request)
        if isinstance(found, web.Response):
            return found
        if found is None:
            return _no_repo(request)
        values = request.query.get("excludeValues") != "true"
        return web.Response(body=found.export(values=values), content_type=CAR)

    def _readable(self, request: web.Request) -> SpaceRepository | web.Response | None:
        """The repository asked for; None if there is nothing in it, or the host acts as if."""
        account = self._authorized(_bearer(request), "access")
        if isinstance(account, web.Response):
            return account
        space, did = request.query.get("space", ""), request.query.get("repo", "")
        if did != account.did:
            return refused("Forbidden", "Not your own repo", status=403)
        if space in self._deleted:
            return refused("SpaceDeleted", "Space was deleted")
        repository = self.repositories.get((space, did))
        return None if repository is None or not repository.rev or space in self._silent else repository


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if scheme == "Bearer" else ""


def _no_repo(request: web.Request) -> web.Response:
    return refused("RepoNotFound", f"Could not find repo for space: {request.query.get('space')}")


async def _not_implemented(request: web.Request) -> web.Response:
    return refused("MethodNotImplemented", "Method Not Implemented", status=501)
