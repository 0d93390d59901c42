"""The oracle's judgement of freshness, clause by clause of the description of the domain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.simulator.freshness import AGENT, PROMPT, Judgement, canonical_reference, instant, judge

OWN, OTHER = "did:plc:aaaa", "did:web:other.example"
HERE, THERE = f"at://{OWN}/{AGENT}/a", f"at://{OTHER}/{AGENT}/a"
OLD, NEW = sha256(b"old").hexdigest(), sha256(b"new").hexdigest()
MORNING, NOON = "2026-11-01T09:00:00Z", "2026-11-01T12:00:00Z"


def prompt(agent: Any = HERE, raw: Any = OLD, revision: Any = "r1", at: Any = MORNING) -> dict[str, Any]:
    """A compiled prompt's value; a field that is None is left out."""
    fields = {"agent": agent, "rawSystemHash": raw, "memfsRevision": revision, "compiledAt": at}
    return {name: value for name, value in fields.items() if value is not None}


def verdict(mine: Any, hidden: set[str] | None = None, **others: Any) -> tuple[str, ...]:
    """The outcome for prompt ``m`` in our repository: freshness, then reasons.

    ``others``: ``here``/``there`` an agent's value, anything else a prompt in our repository under that key.
    """
    records = {f"at://{OWN}/{PROMPT}/m": mine}
    for name, value in others.items():
        records[{"here": HERE, "there": THERE}.get(name, f"at://{OWN}/{PROMPT}/{name}")] = value
    found = judge(records, hidden or set())[f"at://{OWN}/{PROMPT}/m"]
    return (found.freshness, *found.stale_reasons)


STALE_TEMPLATE, STALE_MEMORY = ("stale", "template_changed"), ("stale", "memory_changed")
FRESH, UNVERIFIED = ("fresh",), ("unverified",)


@pytest.mark.parametrize(
    ("agent", "mine", "outcome"),
    [
        ({"system": "old"}, prompt(), FRESH),
        ({"system": "old"}, prompt(raw=OLD.upper()), FRESH),
        ({"system": "new"}, prompt(), STALE_TEMPLATE),
        ({"system": "ol\u00e9"}, prompt(raw=sha256("ol\u00e9".encode()).hexdigest()), FRESH),
        ({"system": ""}, prompt(raw=sha256(b"").hexdigest()), FRESH),
        ({"system": "old"}, prompt(raw=OLD + " "), UNVERIFIED),
        ({"system": "new"}, prompt(raw="sha256:" + OLD), UNVERIFIED),
        ({"system": "new"}, prompt(raw=None), UNVERIFIED),
        ({"system": ["old"]}, prompt(), UNVERIFIED),
        ({}, prompt(), UNVERIFIED),
        ("no object", prompt(), UNVERIFIED),
        ({"system": "old", "memfsRevision": "r1"}, prompt(), FRESH),
        ({"system": "old", "memfsRevision": "r2"}, prompt(), STALE_MEMORY),
        ({"system": "old", "memfsRevision": "r2"}, prompt(revision=None), STALE_MEMORY),
        ({"system": "old", "memfsRevision": 2}, prompt(), FRESH),
        ({"memfsRevision": "r2"}, prompt(), STALE_MEMORY),
        ({"memfsRevision": "r1"}, prompt(), UNVERIFIED),
        ({"system": "new", "memfsRevision": "r2"}, prompt(), ("stale", "memory_changed", "template_changed")),
    ],
)
def test_the_agents_record_is_the_first_evidence(agent: Any, mine: Any, outcome: tuple[str, ...]) -> None:
    """Its template confirms or contradicts; a revision it carries can contradict, never confirm."""
    assert verdict(mine, here=agent) == outcome


def test_an_agent_in_another_repository_counts_unless_its_account_is_hidden() -> None:
    """References across repositories come out right; what is hidden is no evidence, also for the sibling rule."""
    mine = prompt(agent=THERE)
    assert verdict(mine, there={"system": "new"}) == STALE_TEMPLATE
    assert verdict(mine, there={"system": "new"}, hidden={OTHER}) == UNVERIFIED
    later = prompt(agent=THERE, raw=NEW, at=NOON)
    assert verdict(mine, there={"system": "old"}, n=later) == FRESH
    assert verdict(mine, there={"system": "old"}, n=later, hidden={OTHER}) == STALE_TEMPLATE


@pytest.mark.parametrize(
    "agent",
    [
        f"at://alice.test/{AGENT}/a",
        HERE + "/",
        HERE + "?x",
        HERE + "#x",
        HERE + "\n",
        f"at://{OWN}/{AGENT}",
        HERE.replace("at:", "AT:"),
        f"at://{OWN}/{PROMPT}x/a",
        f"at://{OWN}/{AGENT}/..",
        5,
        None,
        [HERE],
    ],
)
def test_only_the_canonical_reference_names_an_agent(agent: Any) -> None:
    """By handle, with anything more or less, or of another collection: nothing is named, so nothing is known."""
    assert verdict(prompt(agent=agent), here={"system": "new"}) == UNVERIFIED


def test_a_record_of_another_collection_is_no_agent() -> None:
    """A canonical reference to a message finds no template there, whatever the message holds."""
    message = HERE.replace(AGENT, "xyz.quasigod.lab.letta.message")
    uri = f"at://{OWN}/{PROMPT}/m"
    assert judge({uri: prompt(agent=message), message: {"system": "new"}})[uri].freshness == "unverified"


@pytest.mark.parametrize("spelling", ["at://{}/space/com.example.space/self", "at:space/{}/com.example.space/self"])
def test_an_agent_in_a_space_is_no_evidence_but_makes_siblings(spelling: str) -> None:
    """A public prompt knows nothing of a space's records, yet prompts that name the same agent are compared."""
    mine = prompt(agent=f"{spelling.format(OTHER)}/{OWN}/{AGENT}/a")
    other = prompt(agent=f"at://{OTHER}/space/com.example.space/self/{OWN}/{AGENT}/a", revision="r2", at=NOON)
    assert verdict(mine, here={"system": "new"}) == UNVERIFIED
    assert verdict(mine, n=other) == STALE_MEMORY


@pytest.mark.parametrize(
    ("sibling", "outcome"),
    [
        (prompt(revision="r2", at=NOON), STALE_MEMORY),
        (prompt(revision=None, at=NOON), STALE_MEMORY),
        (prompt(revision=7, at=NOON), STALE_MEMORY),
        (prompt(at=NOON), UNVERIFIED),
        (prompt(revision="r2", at=MORNING), UNVERIFIED),
        (prompt(revision="r2", at="2026-11-01T11:00:00+02:00"), UNVERIFIED),
        (prompt(revision="r2", at="2026-11-01T09:00:00.0000009Z"), UNVERIFIED),
        (prompt(revision="r2", at="2026-11-01T09:00:00.000001Z"), STALE_MEMORY),
        (prompt(revision="r2", at="2026-11-01T08:00:00-01:01"), STALE_MEMORY),
        (prompt(revision="r2", at="noon"), UNVERIFIED),
        (prompt(revision="r2", at="0000-01-01T00:00:00Z"), UNVERIFIED),
        (prompt(raw=NEW, at=NOON), STALE_TEMPLATE),
        (prompt(raw=NEW.upper(), at=NOON), STALE_TEMPLATE),
        (prompt(raw=OLD.upper(), at=NOON), UNVERIFIED),
        (prompt(raw="new", at=NOON), UNVERIFIED),
        (prompt(agent=THERE, revision="r2", at=NOON), UNVERIFIED),
    ],
)
def test_the_latest_sibling_is_the_second_evidence(sibling: Any, outcome: tuple[str, ...]) -> None:
    """A later compile of the same agent contradicts an earlier one; an equal or unreadable instant says nothing."""
    assert verdict(prompt(), n=sibling) == outcome


def test_the_siblings_hash_counts_only_where_the_agents_template_is_unknown() -> None:
    """With a template at hand the agent's record alone decides about templates, about memory both speak."""
    later = prompt(raw=NEW, revision="r2", at=NOON)
    both = ("stale", "memory_changed", "template_changed")
    assert verdict(prompt(), n=later) == both
    assert verdict(prompt(), n=later, here={"name": "x"}) == both
    assert verdict(prompt(), n=later, here={"system": "old"}) == STALE_MEMORY
    assert verdict(prompt(raw="?"), n=later) == STALE_MEMORY


def test_only_the_latest_sibling_speaks_and_ties_go_to_the_greatest_key() -> None:
    """An intermediate sibling that differs is no evidence; of two latest the one with the greater rkey counts."""
    differs, agrees = prompt(revision="r2", at=NOON), prompt(at=NOON)
    assert verdict(prompt(), n=prompt(revision="r2", at="2026-11-01T10:00:00Z"), o=agrees) == UNVERIFIED
    assert verdict(prompt(), a=differs, b=agrees) == UNVERIFIED
    assert verdict(prompt(), a=agrees, b=differs) == STALE_MEMORY
    assert verdict(prompt(), Z=agrees, a=differs) == STALE_MEMORY
    assert verdict(prompt(at=NOON), a=differs, b=prompt(revision="r3")) == UNVERIFIED


def test_a_stranger_cannot_make_our_prompts_stale() -> None:
    """Prompts of the same agent in another repository are no siblings."""
    stranger = {f"at://{OTHER}/{PROMPT}/n": prompt(revision="r2", raw=NEW, at=NOON)}
    found = judge({f"at://{OWN}/{PROMPT}/m": prompt()} | stranger)
    assert {judgement.freshness for judgement in found.values()} == {"unverified"}


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2026-11-01T09:00:00Z", datetime(2026, 11, 1, 9, tzinfo=UTC)),
        ("2026-11-01T09:00:00.1Z", datetime(2026, 11, 1, 9, 0, 0, 100_000, tzinfo=UTC)),
        ("2026-11-01T09:00:00.123456999+05:30", datetime(2026, 11, 1, 3, 30, 0, 123_456, tzinfo=UTC)),
        ("2024-02-29T23:59:59-23:59", datetime(2024, 3, 1, 23, 58, 59, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    ],
)
def test_an_instant_is_read_strictly(written: str, moment: datetime) -> None:
    """Offsets are applied, fractions cut off at microseconds."""
    assert instant(written) == (moment - datetime(1, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_offsets_may_not_lead_out_of_time() -> None:
    """The years 1 to 9999 bound the instant itself too: nothing that reads it could hold another."""
    assert instant("0001-01-01T00:00:00+00:01") is None
    assert instant("9999-12-31T23:59:59-00:01") is None
    assert instant("0001-01-01T00:01:00+00:01") == 0
    assert instant("9999-12-31T23:58:59-00:01") == instant("9999-12-31T23:59:59Z")


@pytest.mark.parametrize(
    "written",
    [
        "",
        "2026-11-01",
        "2026-11-01T09:00Z",
        "2026-11-01t09:00:00Z",
        "2026-11-01T09:00:00z",
        "2026-11-01 09:00:00Z",
        "2026-11-01T09:00:00",
        "2026-11-01T09:00:00.Z",
        "2026-11-01T09:00:00,5Z",
        "2026-11-01T24:00:00Z",
        "2026-11-01T09:60:00Z",
        "2026-11-01T09:00:60Z",
        "2026-02-29T09:00:00Z",
        "2026-11-01T09:00:00+24:00",
        "2026-11-01T09:00:00+0100",
        "0000-01-01T00:00:00Z",
        "12026-11-01T09:00:00Z",
        "2026-11-01T09:00:00Z\n",
        "٢٠٢٦-11-01T09:00:00Z",
    ],
)
def test_what_is_no_instant_is_none(written: str) -> None:
    """Anything but the strict form is unparsable, which is no evidence."""
    assert instant(written) is None


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from((HERE, THERE, OLD, NEW, NOON)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
fields = st.sampled_from(("agent", "system", "memfsRevision", "rawSystemHash", "compiledAt"))
uris = st.sampled_from([f"at://{did}/{PROMPT}/{rkey}" for did in (OWN, OTHER) for rkey in "ab"] + [HERE, THERE, "x"])


@given(st.dictionaries(uris, json | st.dictionaries(fields, json)), st.sets(st.sampled_from((OWN, OTHER))))
def test_any_json_whatsoever_has_a_judgement(records: dict[str, Any], hidden: set[str]) -> None:
    """Every prompt is judged, hostile or not, and reasons are given exactly where it is stale."""
    found = judge(records, hidden)
    assert set(found) == {uri for uri in records if f"/{PROMPT}/" in uri}
    for judgement in found.values():
        assert isinstance(judgement, Judgement)
        assert (judgement.freshness == "stale") == bool(judgement.stale_reasons)
        assert list(judgement.stale_reasons) == sorted(set(judgement.stale_reasons))
        assert judgement.freshness != "fresh" or judgement.agent_known
        assert judgement.agent is None or canonical_reference(judgement.agent) == judgement.agent


SPACE, SPACE_2 = (f"at://{OTHER}/space/com.example.space/{key}" for key in ("self", "else"))


@pytest.mark.parametrize(
    ("agent", "at", "outcome"),
    [
        (f"{SPACE}/{OWN}/{AGENT}/a", SPACE, STALE_TEMPLATE),
        (f"{SPACE}/{OWN}/{AGENT}/a".replace(f"at://{OTHER}/space", f"at:space/{OTHER}"), SPACE, STALE_TEMPLATE),
        (f"{SPACE}/{OWN}/{AGENT}/a", SPACE_2, UNVERIFIED),
        (f"{SPACE}/{OWN}/{AGENT}/a", "", UNVERIFIED),
        (THERE, SPACE, FRESH),
        (THERE, "", FRESH),
    ],
)
def test_an_agent_in_a_space_is_evidence_there_alone(agent: str, at: str, outcome: tuple[str, ...]) -> None:
    """Prompts of the same space are judged by it, public ones and those of other spaces aren't; a public one counts."""
    uri = f"{f'{at}/' if at else 'at://'}{OWN}/{PROMPT}/m"
    records = {uri: prompt(agent), f"{SPACE}/{OWN}/{AGENT}/a": {"system": "new"}, THERE: {"system": "old"}}
    found = judge(records)[uri]
    assert (found.freshness, *found.stale_reasons) == outcome


def test_siblings_are_of_one_repository() -> None:
    """The same account's prompt of the same agent in another space, or in public, is no sibling."""
    places = {
        name: f"{place}{OWN}/{PROMPT}/" for name, place in (("s", f"{SPACE}/"), ("t", f"{SPACE_2}/"), ("p", "at://"))
    }
    records = {
        f"{place}{key}": prompt(revision=key, at=at) for place in places.values() for key, at in (("m", MORNING),)
    }
    records |= {places["s"] + "n": prompt(revision="n", at=NOON)}
    found = {name: judge(records)[place + "m"] for name, place in places.items()}
    assert {name: one.stale_reasons for name, one in found.items()} == {"s": ("memory_changed",), "t": (), "p": ()}
