"""The alpha of August 2026, as the reference PDS speaks it.

context   "atproto-space-v1", then space URI, author DID, rev and ikm, each after its length (uint16 big-endian)
mac       HMAC-SHA256(HKDF-Expand(ikm, context, 32), hash): no extract step, the ikm is the key as it is
signature ECDSA over SHA-256(context), by the author's #atproto key
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

from indexer.spaces.dialect import Dialect

_TAG: Final = b"atproto-space-v1"


def _context(space: str, did: str, rev: str, ikm: bytes) -> bytes:
    parts = (space.encode(), did.encode(), rev.encode(), ikm)
    return _TAG + b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def _mac(ikm: bytes, context: bytes, digest: bytes) -> bytes:
    # RFC 5869, section 2.3, for an output of one hash length: T(1) alone.
    key = hmac.digest(ikm, context + b"\x01", sha256)
    return hmac.digest(key, digest, sha256)


def _spell(space: str) -> str:
    return space


ALPHA_2026_08: Final = Dialect(
    name="the alpha of August 2026",
    list_spaces="com.atproto.space.listSpaces",
    list_repo_ops="com.atproto.space.listRepoOps",
    get_repo="com.atproto.space.getRepo",
    get_latest_commit="com.atproto.space.getLatestCommit",
    versions=frozenset((1,)),
    spell=_spell,
    context=_context,
    mac=_mac,
)
"""Commit version 1, spaces as ``at://{authority}/space/{type}/{skey}``."""
