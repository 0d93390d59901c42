"""How the value of a setting is written: sizes, times, addresses, lists, URLs.

Each function takes what a user wrote (text from a flag or the environment, any type from TOML) and returns the
value, or raises ValueError with a message that starts with "expected" and never quotes what it was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from indexer.syntax import CollectionFilter, is_did

MAX_INTEGER: Final = 2**63 - 1  # what a bigint column holds

_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_TIME_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?) *([A-Za-z]*)", re.ASCII)
_HOST_AND_PORT = r"(?:\[[0-9A-Fa-f:.]+\]|[^:/?#@,\[\]]*)(?::[0-9]{0,5})?"
_DATABASE = re.compile(  # one host or several, as of libpq; an @ or / of a password has to be escaped
    rf"(?i:postgres|postgresql)://(?:[^/?#@]*@)?{_HOST_AND_PORT}(?:,{_HOST_AND_PORT})*(?:/[^?#@]*)?(?:\?[^#@]*)?"
)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen: a host name or address without brackets, and a port (0 = any free one)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _quantity(value: object, units: Mapping[str, float], expected: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value}"
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected {expected}")
    return float(match[1].replace("_", "")) * unit


def parse_size(value: object) -> int:
    """Return a number of bytes for ``10GiB``, ``500 MB`` or a plain number; ValueError says what is expected."""
    size = _quantity(value, _SIZE_UNITS, "a size of at least 1 byte, such as 10GiB, 500MB or 1048576")
    if not 1 <= size <= MAX_INTEGER:
        raise ValueError("expected a size between 1 byte and 8 EiB")
    return int(size)


def parse_duration(value: object) -> float:
    """Return seconds for ``30d``, ``12h``, ``5m``, ``90s``, ``10ms`` or a plain number; ValueError otherwise."""
    seconds = _quantity(value, _TIME_UNITS, "a time greater than 0, such as 120, 90s, 10ms, 5m, 12h or 30d")
    if not 0 < seconds <= 36500 * 86400:
        raise ValueError("expected a time greater than 0 and of at most 100 years")
    return seconds


def parse_listen(value: object) -> Listen:
    """Return host and port of ``127.0.0.1:9464``, ``[::1]:9464`` or ``localhost:0``; ValueError otherwise."""
    if isinstance(value, Listen):
        return value
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", str(value), re.ASCII)
    if match is None or int(match[3]) > 65535:
        raise ValueError("expected HOST:PORT or [IPv6]:PORT with a port of 0 to 65535")
    return Listen(match[1] or match[2], int(match[3]))


def parse_list(value: object) -> object:
    """Return the parts of a comma-separated or JSON list; what is a list already comes back as it is."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",") if item.strip()]
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("expected a list: separated by commas, or in JSON") from None


def parse_cursors(value: object) -> object:
    """Return positions by source from ``SOURCE=N`` words; ValueError for anything else."""
    value = parse_list(value)
    if not isinstance(value, list | tuple):
        return value
    cursors: dict[str, str] = {}
    for item in value:
        source, separator, position = str(item).rpartition("=")
        if not (source and separator) or source in cursors:
            raise ValueError("expected SOURCE=N, each source at most once")
        cursors[source] = position
    return cursors


def refuse_boolean(value: object) -> object:
    """Return the value unless it is a boolean, which pydantic would take for a number; ValueError then."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def lower_case(value: object) -> object:
    """Return text in lower case, anything else as it is."""
    return value.lower() if isinstance(value, str) else value


def _check_url(url: str, schemes: Iterable[str], expected: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in schemes and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        usable = False
    if not usable or re.search(r"[\x00-\x20\x7f]", url):
        raise ValueError(f"expected {expected}")
    return url.rstrip("/")


def check_source(source: str) -> str:
    """Return a source of a known form; ValueError otherwise."""
    if source.startswith("file:") and len(source) > len("file:"):
        return source
    schemes = ("wss", "ws", "jetstream+wss", "jetstream+ws")
    return _check_url(source, schemes, "wss://HOST, jetstream+wss://HOST or file:PATH, without a user name")


def check_http(url: str) -> str:
    """Return an http or https URL without credentials, query and last slash; ValueError otherwise."""
    return _check_url(url, ("https", "http"), "https://HOST, without a user name")


def check_database(url: str) -> str:
    """Return a PostgreSQL URL; ValueError otherwise, also where an unescaped password makes another of it."""
    if _DATABASE.fullmatch(url) is None:
        raise ValueError(
            "expected postgresql://USER:PASSWORD@HOST/DATABASE, with %2F for / and the like in the password"
        )
    return url


def check_did(did: str) -> str:
    """Return a DID; ValueError otherwise."""
    if not is_did(did):
        raise ValueError("expected a DID, such as did:plc:ewvi7nxzyoun6zhxrhs64oiz")
    return did


def check_pattern(pattern: str) -> str:
    """Return a collection's name, or a prefix that ends in ``.*``; ValueError otherwise."""
    try:
        CollectionFilter([pattern])
    except ValueError:
        raise ValueError("expected a collection, such as a.b.c, or a prefix that ends in .*") from None
    return pattern
