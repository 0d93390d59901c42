"""Identifiers of the AT Protocol: DIDs, handles, NSIDs, record keys, TIDs, at-URIs, datetimes, collection filters.

Plain functions over text that never raise on bad input unless they say so. They follow https://atproto.com/specs/
(did, handle, nsid, record-key, tid, at-uri-scheme, lexicon), RFC 3339, and proposal 0016 for URIs of spaces.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone

MAX_DID = 1024  # the specification allows 2,048; longer ones than this can't be keys of our index
MAX_NSID = 317
MAX_AT_URI = 8192

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_ALPHA_LABEL = r"[a-zA-Z](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"  # a top-level domain never begins with a digit
_DID = re.compile(r"did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]")
_HANDLE = re.compile(rf"(?:{_LABEL}\.)+{_ALPHA_LABEL}")
_NSID = re.compile(rf"({_ALPHA_LABEL}(?:\.{_LABEL})+)\.[a-zA-Z][a-zA-Z0-9]{{0,62}}")
_NSID_PREFIX = re.compile(rf"{_ALPHA_LABEL}(?:\.{_LABEL})+")
_RECORD_KEY = re.compile(r"[A-Za-z0-9._:~-]{1,512}")
_TID = re.compile(r"[234567a-j][234567a-z]{12}")
_RFC3339 = re.compile(
    r"([0-9]{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt]([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])"
    r"(?:\.([0-9]+))?(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
# What nearly all paths, at-URIs and datetimes look like, told by one match: never more than the full rules allow.
_PLAIN_PATH = re.compile(r"([a-z]{1,40}(?:\.[a-zA-Z]{1,40}){2,5})/([A-Za-z0-9_-]{1,512})")
_PLAIN_AT_URI = re.compile(rf"at://did:plc:[a-z2-7]{{24}}/{_PLAIN_PATH.pattern}")
_PLAIN_DATETIME = re.compile(
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?Z"
)
_TID_ALPHABET = "234567abcdefghijklmnopqrstuvwxyz"
_TID_DIGITS = bytes.maketrans(_TID_ALPHABET.encode(), b"0123456789abcdefghijklmnopqrstuv")
_SPACE = "space"

LAST_TID = "z" * 13  # bytewise after every TID


def is_did(text: str) -> bool:
    """Whether ``text`` is a DID by AT Protocol syntax, at most 1,024 bytes long."""
    return len(text) <= MAX_DID and _DID.fullmatch(text) is not None


def is_handle(text: str) -> bool:
    """Whether ``text`` is a handle: a domain name of at least two labels, at most 253 characters."""
    return len(text) <= 253 and _HANDLE.fullmatch(text) is not None


def is_nsid(text: str) -> bool:
    """Whether ``text`` is a namespaced identifier such as ``com.example.thing``, at most 317 characters."""
    match = _NSID.fullmatch(text) if len(text) <= MAX_NSID else None
    return match is not None and len(match[1]) <= 253


def is_record_key(text: str) -> bool:
    """Whether ``text`` is a record key: 1 to 512 of ``A-Za-z0-9._:~-``, neither ``.`` nor ``..``."""
    return _RECORD_KEY.fullmatch(text) is not None and text not in {".", ".."}


def is_tid(text: str) -> bool:
    """Whether ``text`` is a timestamp identifier: 13 characters of sortable base32, the high bit clear."""
    return _TID.fullmatch(text) is not None


def tid_micros(tid: str) -> int | None:
    """The time in a TID, in microseconds since 1970-01-01T00:00Z; None if ``tid`` is none."""
    return int(tid.encode().translate(_TID_DIGITS), 32) >> 10 if is_tid(tid) else None


def tid_of(micros: int, clock_id: int = 0) -> str:
    """The TID of a time in microseconds since the epoch (below 2^54) and a clock id (0 to 1,023).

    Raises ValueError if either is out of range.
    """
    if not (0 <= micros < 1 << 54 and 0 <= clock_id < 1 << 10):
        raise ValueError("time or clock id out of a TID's range")
    number = micros << 10 | clock_id
    return "".join(_TID_ALPHABET[number >> shift & 31] for shift in range(60, -1, -5))


def parse_path(path: str) -> tuple[str, str] | None:
    """Collection and record key of an operation's path ``collection/rkey``; None if it is no such path."""
    plain = _PLAIN_PATH.fullmatch(path)
    if plain is not None:
        return plain[1], plain[2]
    collection, slash, rkey = path.partition("/")
    return (collection, rkey) if slash and is_nsid(collection) and is_record_key(rkey) else None


@dataclass(frozen=True, slots=True)
class AtUri:
    """A record's place: ``did`` is its author, ``space`` is '' or the canonical URI of the space that holds it.

    ``str()`` gives the canonical URI.
    """

    did: str
    space: str
    collection: str
    rkey: str

    def __str__(self) -> str:
        return f"{self.space or 'at:/'}/{self.did}/{self.collection}/{self.rkey}"


def parse_record_uri(text: str) -> AtUri | None:
    """The record that ``text`` names, or None if it isn't the URI of a record under DIDs.

    Takes ``at://{did}/{collection}/{rkey}`` and both spellings of a space's records,
    ``at://{authority}/space/{type}/{skey}/{author}/{collection}/{rkey}`` and ``at:space/{authority}/{type}/…``.
    Handles, fragments, queries and trailing slashes name nothing: two texts that name one record differ in nothing but
    the spelling of the space.
    """
    parts = _segments(text)
    if len(parts) == 3 and parts[1] != _SPACE:
        space, (did, collection, rkey) = "", parts
    elif len(parts) == 7 and _is_space(parts[:4]):
        space, (did, collection, rkey) = "at://" + "/".join(parts[:4]), parts[4:]
    else:
        return None
    if not (is_did(did) and is_nsid(collection) and is_record_key(rkey)):
        return None
    return AtUri(did, space, collection, rkey)


def parse_space_uri(text: str) -> str | None:
    """The canonical URI ``at://{authority}/space/{type}/{skey}`` of a space in either spelling, else None."""
    parts = _segments(text)
    return "at://" + "/".join(parts) if _is_space(parts) else None


def is_at_uri(text: str) -> bool:
    """Whether ``text`` has the Lexicon string format ``at-uri``: at most 8,192 characters, no query, no fragment.

    The authority may be a handle, record key and collection may be missing; of a space (both spellings, DIDs only)
    either the space itself or a record in it.
    """
    if _PLAIN_AT_URI.fullmatch(text):
        return True
    parts = _segments(text)
    if len(parts) > 1 and parts[1] == _SPACE:
        return _is_space(parts) or parse_record_uri(text) is not None
    return (
        1 <= len(parts) <= 3
        and (_DID.fullmatch(parts[0]) is not None or is_handle(parts[0]))
        and all(is_nsid(collection) for collection in parts[1:2])
        and all(is_record_key(rkey) for rkey in parts[2:3])
    )


def _segments(text: str) -> list[str]:
    """What an at-URI holds between its slashes, ``at:space/`` respelled as ``at://``; empty if it is none."""
    if len(text) > MAX_AT_URI:
        return []
    if text.startswith("at://"):
        return text[5:].split("/")
    if text.startswith("at:space/"):
        authority, *rest = text[9:].split("/")
        return [authority, _SPACE, *rest]
    return []


def _is_space(parts: list[str]) -> bool:
    """Whether the segments are exactly those of a space: authority, the word space, type, key."""
    return len(parts) == 4 and is_did(parts[0]) and parts[1] == _SPACE and is_nsid(parts[2]) and is_record_key(parts[3])


def is_datetime(text: str) -> bool:
    """Whether ``text`` has the Lexicon string format ``datetime`` (what RFC 3339, ISO 8601 and HTML share).

    Upper-case T and Z, seconds and a time zone are mandatory, ``-00:00`` and leap seconds are not allowed, the day must
    exist. The year 0000 is well-formed, though nothing here can hold it: see :func:`parse_instant`.
    """
    if _PLAIN_DATETIME.fullmatch(text):
        return True
    match = _RFC3339.fullmatch(text) if len(text) <= 64 else None
    if match is None or text[10] == "t" or text.endswith(("z", "-00:00")):
        return False
    return int(match[3]) <= monthrange(int(match[1]), int(match[2]))[1]


def parse_instant(text: str) -> datetime | None:
    """The instant an RFC 3339 string names, in UTC, cut to microseconds.

    None if it is malformed, names a day that doesn't exist or a leap second, or falls outside the years 1 to 9999.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    *numbers, fraction, sign, hours, minutes = match.groups()
    zone = timezone(int(f"{sign}1") * timedelta(hours=int(hours), minutes=int(minutes))) if sign else UTC
    year, month, day, hour, minute, second = map(int, numbers)
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    try:
        return datetime(year, month, day, hour, minute, second, micros, zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class CollectionFilter:
    """Which collections are wanted: exact NSIDs, or ``a.b.*`` for all that begin with ``a.b.`` (the dot counts).

    Takes any iterable of patterns and raises ValueError, naming the pattern, if one is neither or there is none.
    ``patterns`` then are sorted and unique; ``path.startswith(prefixes)`` is an exact test on an operation's path
    ``collection/rkey``.
    """

    patterns: tuple[str, ...]
    prefixes: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __init__(self, patterns: Iterable[str]) -> None:
        ordered = tuple(sorted(set(patterns)))
        if not ordered:
            raise ValueError("no collection is named")
        object.__setattr__(self, "patterns", ordered)
        object.__setattr__(self, "prefixes", tuple(map(_path_prefix, ordered)))

    def matches(self, collection: str) -> bool:
        """Whether the collection is wanted."""
        return f"{collection}/".startswith(self.prefixes)

    def covers(self, other: CollectionFilter) -> bool:
        """Whether every collection that ``other`` wants is wanted here: if not, ``other`` is wider."""
        return all(prefix.startswith(self.prefixes) for prefix in other.prefixes)


def _path_prefix(pattern: str) -> str:
    """What a path of a collection under ``pattern`` begins with."""
    if is_nsid(pattern):
        return pattern + "/"
    if pattern.endswith(".*") and len(pattern) <= MAX_NSID and _NSID_PREFIX.fullmatch(pattern[:-2]):
        return pattern[:-1]
    raise ValueError(f"neither an NSID nor a prefix that ends in .*: {pattern!r}")
