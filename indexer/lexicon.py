"""Validation against the published Lexicons (https://atproto.com/specs/lexicon) that ship with this package.

Nothing is refused for being invalid: a record is stored as it came, marked, with every rule it breaks. A collection
without a published schema is neither valid nor invalid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from indexer.cbor import decode_record, to_json_text
from indexer.model import COMPILED_PROMPT, Json, Record, Violation
from indexer.syntax import is_at_uri, is_datetime, is_tid
from indexer.texts import facts_of

MAX_REFERENCE = 2_000  # characters; a longer reference names no record

_Broken: TypeAlias = "Callable[[Json], Sequence[str]]"  # the rules that a property breaks: of a wrong type no further


def validate(collection: str, rkey: str, data: dict[str, Json]) -> tuple[bool | None, tuple[Violation, ...]]:
    """Holds a record's JSON form against the schema of its collection.

    Gives (None, ()) if no schema is known, else whether it is valid, and every violation: ``field`` is the name of a
    top-level field (``rkey`` for the record key), ``rule`` one of ``type``, ``required``, ``max_length``, ``at-uri``,
    ``datetime``, ``tid``.
    """
    schema = _schemas().get(collection)
    if schema is None:
        return None, ()
    violations = tuple(schema.violations(collection, rkey, data))
    return not violations, violations


def record_of(collection: str, rkey: str, block: bytes) -> Record:
    """Decodes and validates a record's block into the form the store keeps.

    Raises :class:`indexer.errors.Rejected` with ``UNDECODABLE_RECORD``; such a block is kept by
    :func:`undecodable_record`. Breaches of the data model make a record of a known schema invalid too.
    """
    decoded = decode_record(block)
    valid, breaches = validate(collection, rkey, decoded.data)
    violations = decoded.violations + breaches
    return Record(
        value=to_json_text(decoded.data),
        size=len(block),
        block=None if decoded.lossless else block,
        digests=decoded.digests,
        valid=None if valid is None else not violations,
        violations=violations,
        agent=_agent_of(collection, decoded.data),
        facts=facts_of(collection, decoded.data, decoded.digests),
    )


def _agent_of(collection: str, data: dict[str, Json]) -> str | None:
    agent = data.get("agent") if collection == COMPILED_PROMPT else None
    return agent if isinstance(agent, str) and len(agent) <= MAX_REFERENCE else None


def undecodable_record(block: bytes) -> Record:
    """What is kept of a block that is no record: its bytes, an empty object, and the violation ``undecodable``."""
    return Record(value="{}", size=len(block), block=block, valid=False, violations=(Violation("", "undecodable"),))


def _string_rules(form: str | None, max_bytes: int | None) -> _Broken:
    """The rules of a string; without a format or a length to keep to, None."""
    is_formed = _FORMATS[form] if form is not None else None

    def broken(value: Json) -> Sequence[str]:
        if not isinstance(value, str):
            return ("type",)
        # Lexicon counts bytes of UTF-8, not characters; a character has at most four.
        is_long = max_bytes is not None and max_bytes < 4 * len(value) and len(value.encode()) > max_bytes
        if is_formed is None or is_formed(value):
            return ("max_length",) if is_long else ()
        return ("max_length", str(form)) if is_long else (str(form),)

    return broken


@dataclass(frozen=True, slots=True)
class _Schema:
    """The rules of one collection."""

    tid_key: bool
    required: tuple[str, ...]
    fields: dict[str, _Broken]

    def violations(self, collection: str, rkey: str, data: dict[str, Json]) -> Iterator[Violation]:
        """Every rule the record breaks."""
        if data.get("$type") != collection:
            yield Violation("$type", "type")
        if self.tid_key and not is_tid(rkey):
            yield Violation("rkey", "tid")
        for name in self.required:
            if name not in data:
                yield Violation(name, "required")
        for name, value in data.items():
            broken = self.fields.get(name)
            if broken is not None:
                for rule in broken(value):
                    yield Violation(name, rule)


def _is_object(value: Json) -> bool:
    """Whether a JSON form stands for a map, not for a link or a byte string."""
    return isinstance(value, dict) and value.keys() not in ({"$link"}, {"$bytes"})


_TYPES: dict[str, Callable[[Json], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "object": _is_object,
    "ref": _is_object,  # all that is referred to is an object, and unpublished: it isn't looked into
    "unknown": _is_object,
}
_FORMATS: dict[str, Callable[[str], bool]] = {"at-uri": is_at_uri, "datetime": is_datetime}
_KEYWORDS = {"type", "format", "maxLength", "ref", "description", "knownValues"}  # known values are no enumeration


@cache
def _schemas() -> dict[str, _Schema]:
    """The packaged schemas by collection."""
    files = (
        entry for entry in resources.files("indexer").joinpath("lexicons").iterdir() if entry.name.endswith(".json")
    )
    documents = [json.loads(entry.read_text(encoding="utf-8")) for entry in files]
    return {document["id"]: _schema(document["defs"]["main"]) for document in documents}


def _schema(definition: dict[str, Any]) -> _Schema:
    """Compiles a record definition; raises ValueError for a rule that this module doesn't know."""
    record = definition["record"]
    fields = {name: _field(name, rules) for name, rules in record["properties"].items()}
    # A required field without a definition (the published `lastSeq`) is a leftover: not asked for.
    required = tuple(name for name in record["required"] if name in fields)
    return _Schema(definition["key"] == "tid", required, fields)


def _field(name: str, rules: dict[str, Any]) -> _Broken:
    if (
        rules.keys() - _KEYWORDS
        or rules["type"] not in ("string", *_TYPES)
        or rules.get("format", "at-uri") not in _FORMATS
    ):
        raise ValueError(f"the packaged schema of {name} has a rule that isn't implemented")
    if rules["type"] == "string":
        return _string_rules(rules.get("format"), rules.get("maxLength"))
    is_type = _TYPES[rules["type"]]
    return lambda value: () if is_type(value) else ("type",)
