"""One request to a host that the operator named, before or without the client that everything else goes through."""

from __future__ import annotations

from indexer.outbound.client import Outbound
from indexer.outbound.failures import FetchFailed


async def fetched_once(url: str) -> bytes | None:
    """The body, of at most a mebibyte, of a URL of the operator's; None for whatever isn't a success."""
    outbound = Outbound()
    try:
        reply = await outbound.fetch(url, trusted=True)
    except FetchFailed:
        return None
    finally:
        await outbound.aclose()
    return reply.body if reply.status == 200 else None
