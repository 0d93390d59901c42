"""Histories of small repositories: those a simulated life makes, and hostile ones made by chance.

Both are frames. What an index of them must hold is worked out here from the frames alone, with nothing of the code
under test: the decoder and the judge are the simulator's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import cbor2
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from indexer.simulator import World, events
from indexer.simulator.archive import read_car
from indexer.simulator.dagcbor import cid_text, decode
from tests import frames
from tests.frames import AGENT, CONVERSATION, DID, MESSAGE, OTHER, PREFIX, PROMPT, START, STRANGER

NOW = datetime.fromtimestamp(START / 1_000_000, UTC) + timedelta(hours=1)

Batches: TypeAlias = "list[list[bytes]]"


def examples(count: int) -> settings:
    """Settings for ``count`` examples that share a database, the same ones at every run where ``CI`` is set."""
    unfit = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=count, deadline=None, derandomize="CI" in os.environ, suppress_health_check=unfit, database=None
    )


# What a set of frames comes to, whatever their order and number, where the source's word is taken.


class Version(NamedTuple):
    """A record as a commit wrote it."""

    uri: str
    rev: str
    cid: str


@dataclass(slots=True)
class Held:
    """What an index holds: the rows, the writes of prompts since their last delete, each account's (time, status)."""

    rows: set[Version] = field(default_factory=set)
    compiles: set[Version] = field(default_factory=set)
    statuses: dict[str, tuple[str, str]] = field(default_factory=dict)


def held(given: Iterable[bytes]) -> Held:
    """Work out what an index of these frames holds."""
    written: dict[str, set[tuple[str, str]]] = {}  # by URI: rev and CID of each write
    gone: dict[str, str] = {}  # by URI: the rev of its last delete
    purged: dict[str, str] = {}
    result = Held()
    for header, body in map(events.parse, given):
        if header["t"] == "#commit":
            for op in {op["path"]: op for op in body["ops"] if op["path"].startswith(PREFIX)}.values():
                uri = f"at://{body['repo']}/{op['path']}"
                if op["cid"] is None:
                    gone[uri] = max(body["rev"], gone.get(uri, ""))
                else:
                    written.setdefault(uri, set()).add((body["rev"], cid_text(op["cid"].cid)))
        elif header["t"] == "#account":
            did, status = body["did"], body.get("status", "active")
            result.statuses[did] = max((body["time"], status), result.statuses.get(did, ("", "")))
            if status == "deleted":
                micros = datetime.fromisoformat(body["time"]) - datetime.fromtimestamp(0, UTC)
                rev = frames.tid(micros // timedelta(microseconds=1), 1023)
                purged[did] = max(rev, purged.get(did, ""))
    for uri, writes in written.items():
        floor = max(gone.get(uri, ""), purged.get(uri.split("/")[2], ""))
        left = {Version(uri, rev, cid) for rev, cid in writes if rev > floor}
        result.rows |= {max(left)} if left else set()
        result.compiles |= left if f"/{PROMPT}/" in uri else set()
    return result


def values_in(given: Iterable[bytes]) -> dict[str, Any]:
    """Every record that these frames carry, by CID."""
    values = {}
    for header, body in map(events.parse, given):
        blocks = dict(read_car(body["blocks"])[1]) if header["t"] == "#commit" else {}
        for op in body.get("ops", ()):
            if op["cid"] is not None:
                values[cid_text(op["cid"].cid)] = decode(blocks[op["cid"].cid])[0]
    return values


# Arrivals: the frames of a history in some order, some of them more than once, in some batching. They are drawn as
# numbers, so that a failing example can be read.


@st.composite
def batching(draw: st.DrawFn, numbers: Sequence[int]) -> list[list[int]]:
    """The numbers as they come, cut into batches anywhere."""
    cuts = sorted({0, len(numbers), *draw(st.lists(st.integers(0, len(numbers)), max_size=6))})
    return [list(numbers[start:end]) for start, end in pairwise(cuts)]


@st.composite
def arrivals(draw: st.DrawFn, count: int) -> list[list[int]]:
    """The numbers below ``count`` in any order, some more than once, in any batching."""
    again = draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []
    return draw(batching(draw(st.permutations([*range(count), *again]))))


def arriving(batches: list[list[int]], given: Sequence[bytes]) -> Batches:
    """The frames with these numbers."""
    return [[given[number] for number in batch] for batch in batches]


# Lives.

WEIGHTS = {
    "noise": 6, "template": 10, "recompile": 10, "memory": 10, "equal": 4, "switch_memory": 3, "fork": 8, "agent": 6,
    "delete_prompt": 4, "delete_agent": 2, "delete_conversation": 2, "delete_message": 3, "hide": 3, "come_back": 4,
    "delete_account": 1, "message": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lived:
    """A world and all the frames it emitted; ``str()`` is how to make it again."""

    seed: int
    steps: int
    world: World
    frames: list[bytes]

    @property
    def now(self) -> datetime:
        """The present of the world."""
        return self.world.clock()

    def __repr__(self) -> str:
        return f"lived({self.seed}, {self.steps})"


def lived(seed: int, steps: int) -> Lived:
    """A life with many changes, few accounts, many agents in other repositories, and much that is odd."""
    world = World(seed, accounts=3, weights=WEIGHTS, quirks=0.25, foreign=0.4)
    return Lived(seed, steps, world, world.take() + world.run(steps))


lives = st.builds(lived, st.integers(0, 1 << 20), st.integers(1, 80))


# Hostile histories: few keys, few moments, any JSON in any field.


@dataclass(frozen=True, slots=True)
class Put:
    """A record written."""

    collection: str
    rkey: str
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gone:
    """A record deleted, whether it was there or not."""

    collection: str
    rkey: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit, so many seconds after the start."""

    did: str
    second: int
    ops: tuple[Put | Gone, ...]

    def frame(self) -> bytes:
        """The ``#commit``."""
        return frames.commit(*map(_op, self.ops), did=self.did, rev=frames.rev(self.second))


@dataclass(frozen=True, slots=True)
class Told:
    """An account's status, so many seconds after the start."""

    did: str
    second: int
    status: str

    def frame(self) -> bytes:
        """The ``#account``."""
        time = datetime.fromtimestamp(START / 1_000_000, UTC) + timedelta(seconds=self.second)
        active = self.status == "active"
        return frames.account(self.did, active=active, status=None if active else self.status, time=time.isoformat())


def _op(op: Put | Gone) -> frames.Op:
    if isinstance(op, Gone):
        return frames.delete(op.collection, op.rkey)
    return frames.put(op.collection, op.rkey, op.value)


THIRD = "did:web:third.example"
KEYS = [frames.key(number) for number in range(3)]
TEMPLATES = ["", "old", "new", "n\u00e9w", "nul\0", "nul\ufffd", "back\\slash", "\\x41", "{}"]
INSTANTS = [
    "2024-01-02T03:04:05Z", "2024-01-02T03:04:05.000Z", "2024-01-02T03:04:05.0000009+00:00",
    "2024-01-02T03:04:05-00:00",
    "2024-01-02T05:34:05+02:30", "2024-01-02T03:04:05.000001Z", "2024-01-03T03:04:04-23:59", "2024-02-29T00:00:00Z",
    "2023-02-29T00:00:00Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59",
    "2024-01-02T03:04:60Z", "2024-01-02t03:04:05z", "2024-01-02", "now", "infinity", f"2024-01-02T03:04:05.{'1' * 99}Z",
]  # fmt: skip
JSON: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, 0.1, "", "x", "0", "a\0b", "a\ufffdb", b"", b"bytes", [], ["r1"], {},
    {"system": "new"}, {"$link": "x"}, cbor2.CBORTag(42, b"\0" + frames.cid_of(b"x")),
]  # fmt: skip
SPACE = f"{DID}/space/com.example.space/self"
REFERENCES = [
    *(frames.uri(AGENT, rkey, did) for did in (DID, STRANGER, THIRD) for rkey in KEYS[:2]),
    frames.uri(AGENT, KEYS[0]) + "/", frames.uri(AGENT, KEYS[0]) + "#x", "AT" + frames.uri(AGENT, KEYS[0])[2:],
    f"at://alice.test/{AGENT}/{KEYS[0]}", f"at://{DID}", f"at://{DID}/{AGENT}", frames.uri(MESSAGE, KEYS[0]),
    frames.uri(AGENT, ".."), frames.uri(AGENT, "k" * 512), frames.uri(AGENT, "k" * 513), frames.uri("-x.y.z", "k"),
    frames.uri("x.y-.z", "k"), frames.uri(f"x.{'y' * 64}.z", "k"), f"at://{SPACE}/{DID}/{AGENT}/{KEYS[0]}",
    f"at:space/{SPACE.replace('/space', '')}/{DID}/{AGENT}/{KEYS[0]}", "at://" + "x" * 8000,
]  # fmt: skip
HASHES = [
    *map(frames.sha256, TEMPLATES), frames.sha256("old").upper(), frames.sha256("old") + " ", frames.sha256("old")[1:],
    "g" * 64, "\u0660" * 32, "sha256:" + frames.sha256("old"),
]  # fmt: skip


def _either(usual: list[Any]) -> st.SearchStrategy[Any]:
    """One of the usual values, seldom any JSON."""
    return st.one_of(*[st.sampled_from(usual)] * 5, st.sampled_from(JSON))


_memory = _either(["r1", "r2", "R1", "", "r\0", "r\ufffd"])
_prompt = {
    "agent": _either(REFERENCES[:1] * 16 + REFERENCES[1:6] * 2 + REFERENCES[6:]),
    "rawSystemHash": _either(HASHES[:4] + HASHES),
    "memfsRevision": _memory,
    "compiledAt": _either(INSTANTS),
    "content": _either(TEMPLATES),
    "coreMemory": _either(TEMPLATES),
    "conversation": _either(REFERENCES),
}
_values: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    PROMPT: st.one_of(st.fixed_dictionaries(_prompt), st.fixed_dictionaries({}, optional=_prompt)),
    AGENT: st.fixed_dictionaries({}, optional={"system": _either(TEMPLATES), "memfsRevision": _memory}),
    CONVERSATION: st.fixed_dictionaries({}, optional={"agent": _either(REFERENCES), "role": _either(["primary"])}),
    MESSAGE: st.fixed_dictionaries({}, optional={"conversation": _either(REFERENCES), "seq": _either([1, 2])}),
    OTHER: st.fixed_dictionaries({}, optional={"any": st.sampled_from(JSON)}),
}
_collections = st.sampled_from([PROMPT] * 6 + [AGENT] * 4 + [CONVERSATION, MESSAGE, OTHER])
_puts = _collections.flatmap(lambda name: st.builds(Put, st.just(name), st.sampled_from(KEYS), _values[name]))
_ops = st.one_of(_puts, _puts, _puts, st.builds(Gone, _collections, st.sampled_from(KEYS)))
_dids = st.sampled_from([DID, DID, DID, STRANGER, THIRD])
_seconds = st.integers(0, 12)
_statuses = st.sampled_from(["active", "active", "deactivated", "takendown", "deleted", "throttled", "odd"])
_commits = st.builds(Committed, _dids, _seconds, st.lists(_ops, min_size=1, max_size=6).map(tuple))
_tellings = st.builds(Told, _dids, _seconds, _statuses)

hostile = st.lists(st.one_of(_commits, _commits, _commits, _commits, _tellings), max_size=14)

# The same among so few keys that nearly every event meets another.
_few = st.one_of(
    st.builds(Put, st.just(PROMPT), st.just(KEYS[0]), st.sampled_from([{"content": "a"}, {"content": "b"}])),
    st.builds(Put, st.just(AGENT), st.just(KEYS[0]), st.sampled_from([{"system": "old"}, {"system": "new"}])),
    st.builds(Gone, st.sampled_from([PROMPT, AGENT]), st.just(KEYS[0])),
)
_quarrel = st.builds(Committed, st.just(DID), st.integers(0, 6), st.lists(_few, min_size=1, max_size=2).map(tuple))
_parting = st.builds(Told, st.just(DID), st.integers(0, 6), st.sampled_from(["active", "deactivated", "deleted"]))

quarrels = st.lists(st.one_of(_quarrel, _quarrel, _quarrel, _quarrel, _quarrel, _parting), min_size=3, max_size=10)

# Prompts that are always siblings of others: one repository, two agents, few values.
_sibling = st.fixed_dictionaries(
    {
        "agent": st.sampled_from([REFERENCES[0], REFERENCES[0], REFERENCES[1]]),
        "rawSystemHash": st.sampled_from([HASHES[1], HASHES[1].upper(), HASHES[2], "none"]),
        "compiledAt": st.sampled_from(["2023-01-01T00:00:00Z", INSTANTS[0], INSTANTS[3], INSTANTS[4], "never"]),
    },
    optional={"memfsRevision": st.sampled_from(["r1", "r2"])},
)
_systems = {"system": st.sampled_from(["old", "new"]), "memfsRevision": st.just("r1")}
_related = st.one_of(
    *[st.builds(Put, st.just(PROMPT), st.sampled_from(KEYS), _sibling)] * 5,
    st.builds(Put, st.just(AGENT), st.just(KEYS[0]), st.fixed_dictionaries({}, optional=_systems)),
    st.builds(Gone, st.sampled_from([PROMPT, AGENT]), st.sampled_from(KEYS)),
)
_family = st.builds(Committed, st.just(DID), st.integers(0, 9), st.lists(_related, min_size=1, max_size=3).map(tuple))

families = st.lists(_family, min_size=6, max_size=10)
