"""The hash of a set of records: against a plain one, and against a real repository."""

from __future__ import annotations

from base64 import b64decode
from functools import reduce
from itertools import permutations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from indexer import lthash
from tests.spaces import captured

elements = st.lists(st.binary(max_size=40), max_size=6)


def plain(added: list[bytes], removed: list[bytes]) -> bytes:
    """The state, one lane at a time."""
    lanes = [0] * 1024
    for sign, group in ((1, added), (-1, removed)):
        for one in group:
            output = blake3(one).digest(length=2048)
            for lane in range(1024):
                lanes[lane] = (lanes[lane] + sign * int.from_bytes(output[2 * lane : 2 * lane + 2], "little")) % 65536
    return b"".join(lane.to_bytes(2, "little") for lane in lanes)


@given(elements, elements)
def test_fold_is_the_sum_of_lanes(added: list[bytes], removed: list[bytes]) -> None:
    """All lanes at once give what each lane gives alone: nothing spills from one into the next."""
    assert lthash.fold(lthash.EMPTY, added, removed) == plain(added, removed)


@given(elements, elements, elements)
def test_what_went_came_for_nothing(held: list[bytes], came: list[bytes], more: list[bytes]) -> None:
    """Removing undoes adding, whatever else happened in between and in however many steps."""
    state = lthash.fold(lthash.EMPTY, held)
    after = lthash.fold(lthash.fold(state, came), more, came)
    assert lthash.fold(after, (), more) == state


def test_order_plays_no_part() -> None:
    """A set has no order."""
    orders = permutations((b"a", b"b", b"c", b"d"))
    states = {reduce(lambda state, one: lthash.fold(state, [one]), order, lthash.EMPTY) for order in orders}
    assert len(states) == 1


def test_carries_stay_in_their_lane() -> None:
    """A full lane overflows alone: each becomes what was added, less one."""
    lanes = plain([b"x"], [])
    expected = b"".join(
        ((int.from_bytes(lanes[at : at + 2], "little") - 1) % 65536).to_bytes(2, "little")
        for at in range(0, len(lanes), 2)
    )
    assert lthash.fold(b"\xff" * lthash.STATE_BYTES, [b"x"]) == expected


def test_real_repository() -> None:
    """The records that the PDS listed at the end hash to what it signed, and no fewer do."""
    prefix = f"{captured.SPACE}/{captured.DID}/"
    records = [lthash.element(uri.removeprefix(prefix), cid) for uri, cid in captured.expected().items()]
    signed = captured.step(23)["commit"]["hash"]["$bytes"]
    digest = lthash.digest(lthash.fold(lthash.EMPTY, records))
    assert digest == b64decode(signed + "=")
    assert digest != lthash.digest(lthash.fold(lthash.EMPTY, records[1:]))


@pytest.mark.parametrize("length", [0, 2047, 2049])
def test_state_has_its_length(length: int) -> None:
    """What isn't a state is refused, not padded."""
    with pytest.raises(ValueError, match=f"a state of {length} bytes"):
        lthash.fold(bytes(length), [])
