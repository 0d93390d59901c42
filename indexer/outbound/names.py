"""DNS, asked without threads: a name server that doesn't answer can neither use up a pool nor delay the exit."""

from __future__ import annotations

import socket
from typing import Any, Final

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver
from aiohttp.abc import AbstractResolver, ResolveResult

_LIFETIME: Final = 5.0  # seconds for one question, retries included
_CACHED: Final = 10_000
_MOST_ADDRESSES: Final = 16


class Names(AbstractResolver):
    """Asks the name servers of this machine's configuration, search list and hosts file left out.

    Also the resolver that aiohttp asks for the hosts that strangers name. Answers are kept as long as they say;
    whether an address may be connected to is not decided here.
    """

    def __init__(self) -> None:
        self._resolver: dns.asyncresolver.Resolver | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of ``host``, IPv4 first, as aiohttp wants them; raises OSError if there are none."""
        found = [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, record in ((socket.AF_INET, "A"), (socket.AF_INET6, "AAAA"))
            if family in (socket.AF_UNSPEC, kind)
            for address in [entry.to_text() for entry in await self._ask(host, record)]
        ]
        if not found:
            raise OSError(None, "its name has no address")
        return found[:_MOST_ADDRESSES]

    async def texts(self, name: str) -> list[str]:
        """The TXT records of ``name``, the parts of each joined; [] if there are none or nobody answers."""
        return [b"".join(entry.strings).decode(errors="replace") for entry in await self._ask(name, "TXT")]

    async def close(self) -> None:
        """Nothing is held open between questions."""

    async def _ask(self, name: str, record: str) -> list[Any]:
        try:
            resolver = self._resolver = self._resolver or _configured()
            answer = await resolver.resolve(name.rstrip(".") + ".", record, lifetime=_LIFETIME, search=False)
        except (dns.exception.DNSException, OSError, ValueError):
            return []
        return list(answer)


def _configured() -> dns.asyncresolver.Resolver:
    resolver = dns.asyncresolver.Resolver()
    resolver.cache = dns.resolver.LRUCache(_CACHED)
    return resolver
