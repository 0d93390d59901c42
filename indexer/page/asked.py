"""What a request asks for: its query string, taken apart and checked before anything else sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl

from indexer.syntax import is_did, is_record_key, parse_instant

STATES: Final = ("", "wanted", "hidden", "current")

_PREFIX = re.compile(r"[A-Za-z0-9._:%-]{0,1024}")
_CID = re.compile(r"[A-Za-z0-9]{1,128}")
_REV = re.compile(r"[a-z0-9]{1,64}")


class Unusable(ValueError):
    """The query string is none that the page ever made; the message says which part, never what it held."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a query string: its check, and whether it has to be there."""

    check: Callable[[str], bool]
    needed: bool = False


def _is_prefix(text: str) -> bool:
    return _PREFIX.fullmatch(text) is not None


def _is_cid(text: str) -> bool:
    return _CID.fullmatch(text) is not None


def _is_rev(text: str) -> bool:
    return _REV.fullmatch(text) is not None


def _is_instant(text: str) -> bool:
    return parse_instant(text) is not None


DID, RKEY = Parameter(is_did), Parameter(is_record_key)
THIS_DID, THIS_RKEY = Parameter(is_did, needed=True), Parameter(is_record_key, needed=True)
CID, REV, INSTANT = Parameter(_is_cid), Parameter(_is_rev), Parameter(_is_instant)
PREFIX, STATE = Parameter(_is_prefix), Parameter(STATES.__contains__)


def parse_query(text: str, parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """The fields of a query string by name; '' stands for those left out. Raises Unusable.

    A field that isn't among ``parameters``, comes twice, fails its check, or is needed and missing is an error.
    """
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=8, errors="strict")
    except ValueError:
        raise Unusable("the query is malformed") from None
    found = dict(pairs)
    if len(found) != len(pairs) or not found.keys() <= parameters.keys():
        raise Unusable("the query has a part that is unknown here, or one twice")
    for name, parameter in parameters.items():
        value = found.setdefault(name, "")
        if not (parameter.check(value) if value else not parameter.needed):
            raise Unusable(f"the query's part {name} is missing or no such thing")
    return found


def instant(text: str) -> datetime:
    """The instant of a checked field."""
    found = parse_instant(text)
    assert found is not None
    return found
