"""The signed commit of a permissioned repository: reading it, and judging what it proves.

A commit vouches for the records through ``hash`` (SHA-256 of the LtHash state, :mod:`indexer.lthash`). The signature
covers space, author and rev but not the hash; the MAC ties the hash to them. Its key (``ikm``) is in the commit, so a
commit proves that the host's answer is whole, not who wrote it: see ``docs/privacy.md``. ``ikm``, ``mac`` and ``sig``
differ at every read; two commits are the same state if ``rev`` and ``hash`` are equal.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from indexer.keys import PublicKey
from indexer.spaces.dialect import Dialect
from indexer.syntax import is_tid

_HASH_BYTES: Final = 32
_MAC_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_MOST_IKM_BYTES: Final = 1_024


class Judgement(StrEnum):
    """What came of checking a commit. A closed list; all but ``PROVEN`` and ``WRONG_HASH`` are reasons to store
    unproven."""

    PROVEN = "proven"
    WRONG_HASH = "wrong_hash"  # the records at hand are not those that the commit is about
    BAD_MAC = "bad_mac"
    BAD_SIGNATURE = "bad_signature"
    UNKNOWN_VERSION = "unknown_version"  # a version of commits that the dialect doesn't have
    UNKNOWN_FORM = "unknown_form"  # fields are missing, or of another kind than the version has


@dataclass(frozen=True, slots=True)
class SpaceCommit:
    """A commit as it came: ``rev`` is '' and a byte string empty where the commit has none that is usable.

    ``version`` is None where it isn't a number.
    """

    version: int | None
    rev: str
    hash: bytes
    ikm: bytes
    mac: bytes
    sig: bytes

    @property
    def whole(self) -> bool:
        """Whether every field is there, at the length that commits of version 1 have."""
        lengths = len(self.hash), len(self.mac), len(self.sig)
        fits = lengths == (_HASH_BYTES, _MAC_BYTES, _SIGNATURE_BYTES)
        return fits and 0 < len(self.ikm) <= _MOST_IKM_BYTES and self.rev != ""


def read_commit(body: object) -> SpaceCommit | None:
    """The commit in a JSON answer (``$bytes`` is base64, padded or not) or in a decoded block (plain bytes).

    Unknown fields are passed over, unusable ones left empty. None if ``body`` isn't a map at all.
    """
    if not isinstance(body, Mapping):
        return None
    version, rev = body.get("ver"), body.get("rev")
    return SpaceCommit(
        version if isinstance(version, int) and not isinstance(version, bool) else None,
        rev if isinstance(rev, str) and is_tid(rev) else "",
        *(_bytes_of(body.get(name)) for name in ("hash", "ikm", "mac", "sig")),
    )


def judge(commit: SpaceCommit, digest: bytes, key: PublicKey, *, space: str, did: str, dialect: Dialect) -> Judgement:
    """What ``commit`` proves of records whose LtHash state hashes to ``digest``.

    ``space`` is the canonical URI, ``key`` the author's ``#atproto`` key.
    """
    if commit.version not in dialect.versions:
        return Judgement.UNKNOWN_FORM if commit.version is None else Judgement.UNKNOWN_VERSION
    if not commit.whole:
        return Judgement.UNKNOWN_FORM
    if not hmac.compare_digest(commit.hash, digest):
        return Judgement.WRONG_HASH
    context = dialect.context(dialect.spell(space), did, commit.rev, commit.ikm)
    if not hmac.compare_digest(commit.mac, dialect.mac(commit.ikm, context, commit.hash)):
        return Judgement.BAD_MAC
    return Judgement.PROVEN if key.verify(context, commit.sig) else Judgement.BAD_SIGNATURE


def _bytes_of(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    text = value.get("$bytes") if isinstance(value, Mapping) else None
    if not isinstance(text, str):
        return b""
    digits = text.rstrip("=")
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except ValueError:
        return b""
