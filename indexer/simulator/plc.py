"""A PLC directory on loopback (did:plc specification: ``GET /{did}``, ``GET /{did}/data``)."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from indexer.simulator.keys import did_key
from indexer.simulator.network import Account, Network
from indexer.simulator.service import Service


class Directory(Service):
    """Answers for the DIDs of its networks: 404 for unknown ones, 410 for tombstoned ones."""

    def __init__(self, *networks: Network, port: int = 0) -> None:
        super().__init__(port=port)
        self._networks = networks

    def routes(self) -> Iterable[web.RouteDef]:
        """What the server answers."""
        return [web.get("/{did}", self._document), web.get("/{did}/data", self._data)]

    async def _document(self, request: web.Request) -> web.Response:
        account = self._account(request)
        return web.json_response(account.document(), content_type="application/did+ld+json")

    async def _data(self, request: web.Request) -> web.Response:
        account = self._account(request)
        return web.json_response(
            {
                "did": account.did,
                "verificationMethods": {"atproto": did_key(account.key)},
                "rotationKeys": [],
                "alsoKnownAs": [f"at://{account.handle}"],
                "services": {"atproto_pds": {"type": "AtprotoPersonalDataServer", "endpoint": account.pds}},
            }
        )

    def _account(self, request: web.Request) -> Account:
        did = request.match_info["did"]
        account = next((one.accounts[did] for one in self._networks if did in one.accounts), None)
        if account is None:
            raise web.HTTPNotFound(text=f'{{"message": "DID not registered: {did}"}}', content_type="application/json")
        if account.tombstoned:
            raise web.HTTPGone(text=f'{{"message": "DID not available: {did}"}}', content_type="application/json")
        return account
