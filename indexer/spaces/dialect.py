"""What differs from one form of the permissioned spaces protocol to the next: names, spellings, and the commit.

The proposal (0016) is in its alpha and moves. All that moves is a value of :class:`Dialect`; a new form is a new file
in :mod:`indexer.spaces.dialects`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Context: TypeAlias = Callable[[str, str, str, bytes], bytes]
"""(space as the dialect spells it, author DID, rev, ikm) -> the bytes that a commit's signature is over."""

Mac: TypeAlias = Callable[[bytes, bytes, bytes], bytes]
"""(ikm, context, hash) -> the MAC that ties the hash to the context, 32 bytes."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One form of the protocol.

    ``list_spaces``, ``list_repo_ops``, ``get_repo`` and ``get_latest_commit`` are XRPC methods; ``versions`` are the
    commit versions whose ``context`` and ``mac`` these are; ``spell`` turns a space's canonical URI
    (``at://{authority}/space/{type}/{skey}``) into what stands in requests and in commits.
    """

    name: str
    list_spaces: str
    list_repo_ops: str
    get_repo: str
    get_latest_commit: str
    versions: frozenset[int]
    spell: Callable[[str], str]
    context: Context
    mac: Mac
