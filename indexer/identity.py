"""Who an account is now: its signing key, its PDS and its handle, from its DID document.

Specifications: AT Protocol "DID" (did:plc, did:web by host name), "Handle" (a handle counts only if it leads back to
the DID that claims it).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

from indexer.errors import IdentityError
from indexer.keys import PublicKey, handle_of, pds_endpoint, signing_key
from indexer.outbound import FetchFailed, Outbound
from indexer.syntax import is_did, is_handle

TextLookup: TypeAlias = Callable[[str], Awaitable[list[str]]]

DAY: Final = 86_400.0
CAPACITY: Final = 10_000
DOCUMENT_BYTES: Final = 256 << 10
DOCUMENT_TIMEOUT: Final = 20.0
HANDLE_TIMEOUT: Final = 10.0  # of both ways together
_LONGEST_DID_ANSWER: Final = 2_048

_PLC: Final = re.compile(r"did:plc:[a-z2-7]{24}")
_WEB: Final = re.compile(r"did:web:([A-Za-z0-9.-]{1,253}(?:%3[Aa][0-9]{1,5})?)")
_DNS_DID: Final = "did="
_NEVER_PUBLIC: Final = frozenset(("alt", "arpa", "example", "internal", "invalid", "local", "localhost", "onion"))
_DEVELOPMENT: Final = "test"


class IdentityGone(IdentityError):
    """The DID was tombstoned by its owner: it is deleted and doesn't come back."""


class IdentityUnknown(IdentityError):
    """The directory, or the host of a did:web, knows no such DID."""


@dataclass(frozen=True, slots=True)
class ResolvedIdentity:
    """What a DID document said at ``resolved_at`` (UTC).

    ``pds`` is an origin (``https://host[:port]``), None if the document names none. ``handle`` is None unless it was
    verified both ways; ``claimed_handle`` is what the document says.
    """

    did: str
    signing_key: PublicKey
    pds: str | None
    handle: str | None
    claimed_handle: str | None
    resolved_at: datetime


class Resolver:
    """Resolves DIDs, and remembers the answers for ``ttl`` seconds, ``capacity`` at most, the least used out first.

    ``plc_url`` is the directory of did:plc, trusted as the operator's. With ``verify_handles`` false no handle is
    looked up and all are None. ``texts`` gives the TXT records of a DNS name, by default those the machine's name
    servers know; ``clock`` is Unix time.
    """

    def __init__(
        self,
        outbound: Outbound,
        plc_url: str,
        *,
        clock: Callable[[], float] = time.time,
        ttl: float = DAY,
        capacity: int = CAPACITY,
        verify_handles: bool = True,
        texts: TextLookup | None = None,
    ) -> None:
        self._outbound = outbound
        self._plc_url = plc_url.rstrip("/")
        self._clock = clock
        self._ttl = ttl
        self._capacity = capacity
        self._verify_handles = verify_handles
        self._texts = texts or outbound.texts
        self._known: OrderedDict[str, tuple[float, ResolvedIdentity]] = OrderedDict()
        self._flights: dict[str, asyncio.Future[ResolvedIdentity]] = {}

    async def resolve(self, did: str, *, fresh: bool = False) -> ResolvedIdentity:
        """Who ``did`` is: as remembered, or with ``fresh`` as of a request begun after this call.

        Those who ask for one DID at the same time share a request, and its failure. Raises IdentityGone,
        IdentityUnknown, IdentityError (no DID, or a document of no use) and FetchFailed (no answer).
        """
        if not fresh and (known := self.cached(did)) is not None:
            return known
        flight = self._flights.get(did)
        if flight is not None and fresh:
            await asyncio.wait([flight])  # it began before we asked
            flight = self._flights.get(did)  # perhaps someone else who waited has begun one since
        return await (self._fly(did) if flight is None else asyncio.shield(flight))

    def cached(self, did: str) -> ResolvedIdentity | None:
        """What is remembered of ``did``, without asking anyone; None if that is nothing or out of date."""
        expires, identity = self._known.get(did, (0.0, None))
        if identity is None or expires <= self._clock():
            self._known.pop(did, None)
            return None
        self._known.move_to_end(did)
        return identity

    async def _fly(self, did: str) -> ResolvedIdentity:
        flight = self._flights[did] = asyncio.get_running_loop().create_future()
        try:
            identity = await self._fetch(did)
        except BaseException as error:
            ended = isinstance(error, (IdentityError, FetchFailed))
            # Who shares the request isn't cancelled with us.
            flight.set_exception(error if ended else FetchFailed(f"{did}: the request was given up, ask again"))
            flight.exception()  # seen: nobody needs to be waiting
            raise
        else:
            flight.set_result(identity)
            self._remember(identity)
            return identity
        finally:
            del self._flights[did]

    def _remember(self, identity: ResolvedIdentity) -> None:
        self._known[identity.did] = (self._clock() + self._ttl, identity)
        self._known.move_to_end(identity.did)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    async def _fetch(self, did: str) -> ResolvedIdentity:
        url, trusted = self._document_url(did)
        status, document = await self._outbound.get_json(
            url, max_bytes=DOCUMENT_BYTES, timeout=DOCUMENT_TIMEOUT, trusted=trusted, about=did
        )
        if status == 410:
            raise IdentityGone(f"{did} was deleted by its owner")
        if status == 404:
            raise IdentityUnknown(f"{did} is not known where its document should be")
        if status != 200:
            raise FetchFailed(f"the DID document of {did} can't be had: answer {status}", status=status)
        key, claimed = signing_key(document, did), handle_of(document)
        handle = claimed if claimed and await self._leads_back(claimed, did) else None
        now = datetime.fromtimestamp(self._clock(), UTC)
        return ResolvedIdentity(did, key, pds_endpoint(document), handle, claimed, now)

    def _document_url(self, did: str) -> tuple[str, bool]:
        """Where the document is, and whether that is the operator's word."""
        if _PLC.fullmatch(did):
            return f"{self._plc_url}/{quote(did, safe=':')}", True
        host = _web_host(did, private=self._outbound.allow_private_hosts)
        if host is None:
            raise IdentityError(f"{did[:200]} is no DID that can be resolved: expected did:plc, or did:web with a host")
        scheme = "http" if host.partition(":")[0] == "localhost" else "https"
        return f"{scheme}://{host}/.well-known/did.json", False

    async def did_of(self, handle: str) -> str:
        """The DID that ``handle`` names: by DNS, or if DNS says nothing, by HTTPS. What it names claims it or not.

        Raises IdentityError if it is no handle that can be looked up, or names nothing; FetchFailed (no answer).
        """
        if not is_handle(handle) or not _may_be_looked_up(handle, private=self._outbound.allow_private_hosts):
            raise IdentityError(f"{handle[:253]} is no handle that can be looked up")
        try:
            async with asyncio.timeout(HANDLE_TIMEOUT):
                named = _did_in(await self._texts(f"_atproto.{handle}")) or await self._well_known(handle)
        except TimeoutError:
            raise FetchFailed(f"the handle {handle} can't be looked up in time") from None
        if not is_did(named):
            raise IdentityError(f"the handle {handle} names no DID")
        return named

    async def _leads_back(self, handle: str, did: str) -> bool:
        """Whether ``handle`` names ``did``."""
        try:
            return self._verify_handles and await self.did_of(handle) == did
        except (IdentityError, FetchFailed):
            return False

    async def _well_known(self, handle: str) -> str:
        reply = await self._outbound.fetch(
            f"https://{handle}/.well-known/atproto-did",
            accept="text/plain",
            max_bytes=_LONGEST_DID_ANSWER,
            timeout=HANDLE_TIMEOUT,
            about=f"the handle {handle}",
        )
        return reply.body.decode(errors="replace").strip() if reply.status == 200 else ""


def _web_host(did: str, *, private: bool) -> str | None:
    """``host[:port]`` of a did:web; a port, and a host that isn't a domain name, only if ``private``."""
    match = _WEB.fullmatch(did)
    if match is None or not is_did(did):
        return None
    host = unquote(match[1]).lower()
    return host if private or is_handle(host) else None


def _may_be_looked_up(handle: str, *, private: bool) -> bool:
    """Whether the top-level domain is one that handles may have."""
    top = handle.rpartition(".")[2].lower()
    return top not in _NEVER_PUBLIC and (private or top != _DEVELOPMENT)


def _did_in(texts: list[str]) -> str:
    """The DID that TXT records name: '' for none, and no DID at all if they contradict one another."""
    named = {text.removeprefix(_DNS_DID).strip() for text in texts if text.startswith(_DNS_DID)}
    return "contradiction" if len(named) > 1 else "".join(named)
