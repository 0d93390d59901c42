"""Validation against the published schemas: every rule, each by itself, and nothing that isn't one."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.cbor import cid_text, decode_record
from indexer.errors import Rejected
from indexer.lexicon import _schema, record_of, undecodable_record, validate
from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, MESSAGE, Reason, Record, Violation
from indexer.texts import facts_of
from tests.records import CID, canonical, captured_records

RKEY = "3mzah2lxeehjc"
URI = "at://did:plc:q6q7u4l63fqnr34rwacbq2mv"
TIME = "2026-01-02T03:04:05.678Z"
SOUND: dict[str, dict[str, Any]] = {
    COMPILED_PROMPT: {
        "$type": COMPILED_PROMPT,
        "agent": f"{URI}/{AGENT}/{RKEY}",
        "content": "You are.",
        "compiledAt": TIME,
        "coreMemory": "",
        "conversation": f"{URI}/{CONVERSATION}/{RKEY}",
        "memfsRevision": "0" * 40,
        "rawSystemHash": "f" * 64,
    },
    CONVERSATION: {
        "$type": CONVERSATION,
        "role": "primary",
        "agent": f"{URI}/{AGENT}/{RKEY}",
        "model": "a/b",
        "title": "é",
        "hidden": False,
        "createdAt": TIME,
        "updatedAt": TIME,
        "modelSettings": {"temperature": 1, "nested": {"anything": [None]}},
    },
}
OPTIONAL = {"memfsRevision", "model", "title", "hidden", "modelSettings"}
LIMITS = {
    (COMPILED_PROMPT, "content"): 200_000,
    (COMPILED_PROMPT, "coreMemory"): 200_000,
    (COMPILED_PROMPT, "memfsRevision"): 128,
    (COMPILED_PROMPT, "rawSystemHash"): 128,
    (CONVERSATION, "model"): 256,
    (CONVERSATION, "title"): 256,
}
FIELDS = [(collection, name) for collection, record in SOUND.items() for name in record if name != "$type"]
VALUES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "integer": 1,
    "float": 1.5,
    "string": "text",
    "array": [],
    "object": {},
    "link": {"$link": cid_text(CID)},
    "bytes": {"$bytes": "AA"},
}


def broken(collection: str, rkey: str = RKEY, **changes: Any) -> list[tuple[str, str]]:
    """The rules that a sound record breaks once it is changed."""
    valid, violations = validate(collection, rkey, SOUND[collection] | changes)
    assert valid is (violations == ())
    return [(violation.field, violation.rule) for violation in violations]


@pytest.mark.parametrize("collection", SOUND)
def test_sound_records(collection: str) -> None:
    """A record that keeps the schema is valid, with optional fields or without."""
    assert validate(collection, RKEY, SOUND[collection]) == (True, ())
    least = {name: value for name, value in SOUND[collection].items() if name not in OPTIONAL}
    assert validate(collection, RKEY, least) == (True, ())


def test_the_tests_know_every_field() -> None:
    """The fields tried here are all that the packaged schemas define."""
    defined = set()
    for path in resources.files("indexer").joinpath("lexicons").iterdir():
        schema = json.loads(path.read_text(encoding="utf-8"))
        defined |= {(schema["id"], name) for name in schema["defs"]["main"]["record"]["properties"]}
    assert defined == set(FIELDS)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(("collection", "name"), FIELDS)
def test_types(collection: str, name: str, kind: str) -> None:
    """Each field takes its own JSON type and no other: booleans are no integers, links and bytes no objects."""
    expected = {"hidden": "boolean", "modelSettings": "object"}.get(name, "string")
    value = SOUND[collection][name] if kind == expected == "string" else VALUES[kind]
    assert broken(collection, **{name: value}) == ([] if kind == expected else [(name, "type")])


@pytest.mark.parametrize(("collection", "name"), FIELDS)
def test_required(collection: str, name: str) -> None:
    """Each field that is required and defined must be there; the others need not."""
    record = {key: value for key, value in SOUND[collection].items() if key != name}
    expected = () if name in OPTIONAL else (Violation(name, "required"),)
    assert validate(collection, RKEY, record) == (not expected, expected)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_last_seq_is_free(value: Any) -> None:
    """The leftover ``lastSeq``, required but not defined, is neither asked for nor refused."""
    assert broken(CONVERSATION, lastSeq=value) == []


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("collection", SOUND)
def test_unknown_fields_are_free(collection: str, value: Any) -> None:
    """A field the schema doesn't define breaks nothing."""
    assert broken(collection, somethingNew=value) == []


@pytest.mark.parametrize("value", [None, "", AGENT, COMPILED_PROMPT + "#main", 5, [COMPILED_PROMPT], {}])
def test_wrong_type_name(value: Any) -> None:
    """A ``$type`` of another kind or content is one violation."""
    assert broken(COMPILED_PROMPT, **{"$type": value}) == [("$type", "type")]


def test_no_type_name() -> None:
    """A record without ``$type`` is invalid."""
    record = {name: value for name, value in SOUND[CONVERSATION].items() if name != "$type"}
    assert validate(CONVERSATION, RKEY, record) == (False, (Violation("$type", "type"),))


@pytest.mark.parametrize("rkey", ["self", "", "3MZAH2LXEEHJC", "kmzah2lxeehjc", RKEY + "2"])
def test_keys(rkey: str) -> None:
    """The record key must be a TID."""
    assert broken(CONVERSATION, rkey) == [("rkey", "tid")]


@pytest.mark.parametrize("letter", ["a", "é", "€", "💩"])
@pytest.mark.parametrize(("place", "limit"), LIMITS.items())
def test_lengths_are_counted_in_bytes(place: tuple[str, str], limit: int, letter: str) -> None:
    """A text of exactly the limit in UTF-8 bytes is valid, of one byte more isn't, however few characters it has."""
    collection, name = place
    width = len(letter.encode())
    text = letter * (limit // width) + "a" * (limit % width)
    assert broken(collection, **{name: text}) == []
    assert broken(collection, **{name: text + "a"}) == [(name, "max_length")]


def test_content_of_the_limit_in_characters() -> None:
    """200,000 characters of two bytes are too many."""
    assert broken(COMPILED_PROMPT, content="é" * 200_000) == [("content", "max_length")]


@pytest.mark.parametrize("role", ["primary", "fork", "", "something else"])
def test_known_values_are_no_enumeration(role: str) -> None:
    """A role that the schema doesn't know is valid."""
    assert broken(CONVERSATION, role=role) == []


@pytest.mark.parametrize(
    "text",
    [URI, "at://user.test", f"{URI}/{AGENT}", f"at://user.test/{AGENT}/k",
     f"{URI}/space/a.b.c/self/did:plc:a/{AGENT}/k",
     f"at:space/did:plc:a/a.b.c/self/did:plc:a/{AGENT}/k"],
)  # fmt: skip
def test_references(text: str) -> None:
    """References by handle, to collections and into spaces have the format at-uri."""
    assert broken(COMPILED_PROMPT, agent=text, conversation=text) == []


@pytest.mark.parametrize("text", ["", "x", "https://a.test", f"{URI}/", f"{URI}/{AGENT}/k#a", f"{URI}/{AGENT}/k/"])
@pytest.mark.parametrize(("collection", "name"), [(c, n) for c, n in FIELDS if n in {"agent", "conversation"}])
def test_bad_references(collection: str, name: str, text: str) -> None:
    """Every at-uri field is held to the format."""
    assert broken(collection, **{name: text}) == [(name, "at-uri")]


@pytest.mark.parametrize(
    "text", ["", "now", "2026-01-02", "2026-01-02T03:04:05", "2026-01-02t03:04:05Z", "2026-02-30T00:00:00Z"]
)
@pytest.mark.parametrize(("collection", "name"), [(c, n) for c, n in FIELDS if n.endswith("At")])
def test_bad_datetimes(collection: str, name: str, text: str) -> None:
    """Every datetime field is held to the format."""
    assert broken(collection, **{name: text}) == [(name, "datetime")]


def test_year_zero_is_valid() -> None:
    """A datetime that no clock holds is well-formed, so the record is valid."""
    assert broken(COMPILED_PROMPT, compiledAt="0000-01-01T00:00:00Z") == []


def test_all_violations_are_listed() -> None:
    """One bad field hides no other, and violations name fields and rules, never values."""
    valid, violations = validate(COMPILED_PROMPT, "x", {"agent": "secret", "content": "é" * 100_001, "compiledAt": 1})
    assert valid is False
    assert set(violations) == {
        Violation("$type", "type"), Violation("rkey", "tid"), Violation("agent", "at-uri"), Violation("content",
        "max_length"),
        Violation("compiledAt", "type"), Violation("conversation", "required"), Violation("coreMemory", "required"),
        Violation("rawSystemHash", "required"),
    }  # fmt: skip
    assert "secret" not in repr(violations)


@pytest.mark.parametrize("collection", [AGENT, MESSAGE, AGENT + "s", "com.example.thing", ""])
def test_unknown_collections(collection: str) -> None:
    """Without a schema nothing is valid or invalid, not even a foreign ``$type``."""
    assert validate(collection, "any", {"$type": "other"}) == (None, ())


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", ["array", "boolean", "integer", "object", "string", "unknown"])
def test_types_of_schemas_to_come(name: str, kind: str) -> None:
    """Every type of a schema means that JSON type alone; a schema without TIDs as keys asks for none."""
    schema = _schema({"key": "any", "record": {"required": ["a"], "properties": {"a": {"type": name}}}})
    fits = kind == ("object" if name == "unknown" else name)
    assert list(schema.violations("a.b.c", "self", {"$type": "a.b.c", "a": VALUES[kind]})) == (
        [] if fits else [Violation("a", "type")]
    )


@pytest.mark.parametrize(
    "rules", [{"type": "blob"}, {"type": "string", "format": "did"}, {"type": "string", "enum": []}]
)
def test_rules_that_are_not_implemented(rules: dict[str, Any]) -> None:
    """A packaged schema with a rule that would go unchecked is our own fault, and an error."""
    with pytest.raises(ValueError, match="isn't implemented"):
        _schema({"key": "tid", "record": {"required": [], "properties": {"a": rules}}})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(SOUND)), st.text(max_size=14), st.data())
def test_any_record(collection: str, rkey: str, data: st.DataObject) -> None:
    """No JSON raises, and a record is valid exactly if nothing is wrong with it."""
    names = st.sampled_from([*SOUND[collection], "lastSeq", "other"])
    valid, violations = validate(collection, rkey, data.draw(st.dictionaries(names, json_values)))
    assert valid is (violations == ())
    assert len(violations) == len(set(violations))


# From a block to what the store keeps.


def test_every_captured_record() -> None:
    """Every record of a real PDS is kept without its block, and those of a known schema are valid."""
    valid = set()
    for path, block in captured_records():
        collection, rkey = path.split("/")
        record = record_of(collection, rkey, block)
        data = decode_record(block).data
        agent = str(data["agent"]) if collection == COMPILED_PROMPT else None
        valid_one = True if collection in SOUND else None
        facts = facts_of(collection, data, {})
        assert record == Record(record.value, len(block), valid=valid_one, agent=agent, facts=facts)
        assert json.loads(record.value) == data
        valid.add((collection in SOUND, record.valid))
    assert valid == {(True, True), (False, None)}


@pytest.mark.parametrize(
    ("collection", "agent", "kept"),
    [(COMPILED_PROMPT, "x", True), (COMPILED_PROMPT, "é" * 2000, True), (COMPILED_PROMPT, "x" * 2001, False),
     (COMPILED_PROMPT, 5, False), (COMPILED_PROMPT, ["x"], False), (CONVERSATION, "x", False), (MESSAGE, "x", False)],
)  # fmt: skip
def test_the_agent_of_a_prompt(collection: str, agent: Any, kept: bool) -> None:
    """A prompt's reference to its agent goes along as it stands, if it is a text short enough to name anything."""
    record = record_of(collection, RKEY, canonical({"agent": agent}))
    assert record.agent == (agent if kept else None)


def test_a_breach_of_the_data_model_makes_a_known_record_invalid() -> None:
    """What JSON can't hold is kept as a block, and both kinds of violation are listed together."""
    original = "mem\0ory"
    block = canonical(SOUND[COMPILED_PROMPT] | {"coreMemory": original, "agent": "x"})
    record = record_of(COMPILED_PROMPT, RKEY, block)
    assert json.loads(record.value)["coreMemory"] == "mem\ufffdory"
    assert record.block == block
    assert record.size == len(block)
    assert record.digests == {"coreMemory": hashlib.sha256(original.encode()).hexdigest()}
    assert record.valid is False
    assert record.violations == (Violation("coreMemory", "nul_character"), Violation("agent", "at-uri"))


def test_a_breach_of_the_data_model_alone() -> None:
    """A float in a field that no schema defines makes a known record invalid, and is noted on an unknown one."""
    block = canonical(SOUND[CONVERSATION] | {"extra": 1.5})
    breach = (Violation("extra", "float"),)
    known, unknown = record_of(CONVERSATION, RKEY, block), record_of(MESSAGE, RKEY, block)
    assert (known.valid, known.violations, known.block) == (False, breach, block)
    assert (unknown.valid, unknown.violations, unknown.block) == (None, breach, block)


def test_links_and_bytes_are_no_text() -> None:
    """A link or byte string in place of a text is of the wrong type, and lossless."""
    content = {"agent": cbor2.CBORTag(42, b"\0" + CID), "content": b"text", "modelSettings": b"{}"}
    record = record_of(COMPILED_PROMPT, RKEY, canonical(SOUND[COMPILED_PROMPT] | content))
    assert record.violations == (Violation("agent", "type"), Violation("content", "type"))
    assert record.block is None


@pytest.mark.parametrize("block", [b"", b"\x80", b"\xa1\x61a", b"\xa1\x61a" + b"\x81" * 500 + b"\x01"])
def test_what_is_no_record_is_kept(block: bytes) -> None:
    """A block that can't be decoded is refused by reason, and what is kept of it is its bytes."""
    with pytest.raises(Rejected) as error:
        record_of(CONVERSATION, RKEY, block)
    assert error.value.reason is Reason.UNDECODABLE_RECORD
    assert undecodable_record(block) == Record(
        "{}", len(block), block=block, valid=False, violations=(Violation("", "undecodable"),)
    )
