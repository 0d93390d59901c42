"""Answers of ``listRepoOps`` that arrive wrong by a bit: a load, never a wrong change."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from indexer.keys import PublicKey
from indexer.spaces.dialects import ALPHA_2026_08
from indexer.spaces.repo import Applied, Outcome, Poll, Reload, RepoState, Silent
from tests.spaces import captured
from tests.spaces.authors import OTHER, PROMPT, Author
from tests.spaces.captured import DID, PREFIXES, SPACE


def outcome_of(state: RepoState, text: bytes, key: PublicKey) -> Outcome | None:
    """What comes of a poll with one answer; None if that isn't even JSON (then it is asked for again)."""
    try:
        body = json.loads(text)
    except ValueError:
        return None
    poll = Poll(state, prefixes=PREFIXES, dialect=ALPHA_2026_08)
    poll.take(body)
    return poll.finish(key)


def without_revs(applied: Applied) -> Applied:
    """The outcome but for the revs of its changes, which nothing signed covers."""
    return replace(
        applied,
        changes=tuple(replace(change, rev="") for change in applied.changes),
        superseded=tuple(replace(one, rev="", record=None, ordinal=0) for one in applied.superseded),
    )


def revs_in_order(applied: Applied, since: str) -> bool:
    """Whether every rev lies between the old head and the new one."""
    revs = [change.rev for change in applied.changes] + [one.rev for one in applied.superseded]
    return all(since < rev <= applied.state.rev for rev in revs)


def flipped(text: bytes, bits: range) -> list[bytes]:
    """The text with one bit changed, for each number of a bit."""
    changed = []
    for bit in bits:
        copy = bytearray(text)
        copy[bit // 8] ^= 1 << bit % 8
        changed.append(bytes(copy))
    return changed


def judge_all(state: RepoState, text: bytes, bits: range, key: PublicKey) -> dict[str, int]:
    """How often each kind of outcome came of flipping these bits; fails on a wrong change."""
    truth = outcome_of(state, text, key)
    assert isinstance(truth, Applied)
    seen: dict[str, int] = {}
    for wrong in flipped(text, bits):
        outcome = outcome_of(state, wrong, key)
        if isinstance(outcome, Applied):
            assert without_revs(outcome) == without_revs(truth)
            assert revs_in_order(outcome, state.rev)
        else:
            assert outcome is None or isinstance(outcome, (Reload, Silent))
        seen[type(outcome).__name__] = seen.get(type(outcome).__name__, 0) + 1
    return seen


def test_every_bit_of_a_small_poll() -> None:
    """Any bit of any operation, its value, the cursor or the commit."""
    author = Author()
    author.write((PROMPT, {"text": "once"}), (OTHER, {"n": 1}))
    author.write((PROMPT, {"text": "twice", "blob": b"\x00\x01"}))
    author.write((OTHER, None))
    text = json.dumps(author.page("", "", 100), separators=(",", ":")).encode()
    seen = judge_all(author.state(), text, range(8 * len(text)), author.key())
    assert seen["Reload"] > 8 * len(text) / 2


@pytest.mark.parametrize("steps", [captured.POLLS[0], (captured.WHOLE_LOG,)])
def test_bits_of_real_polls(steps: tuple[int]) -> None:
    """Bits all over the captured answers, one byte in 61."""
    text = json.dumps(captured.step(steps[0]), separators=(",", ":")).encode()
    seen = judge_all(RepoState(SPACE, DID), text, range(0, 8 * len(text), 8 * 61 + 1), captured.key())
    assert seen["Reload"] > len(text) / 61 / 2
