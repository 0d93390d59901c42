"""Differences: right, readable, and bounded whatever the texts are."""

from __future__ import annotations

import random
from collections.abc import Iterable
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.page import difference
from indexer.page.difference import MAX_BLOCK, MAX_SHOWN, WIDE, Line, compare

SECONDS = 5.0  # of a processor; the bound that the page's own limit of time relies on
LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12)


def texts(lines: Iterable[Line], *kinds: str) -> list[tuple[int | None, int | None, str]]:
    """Numbers and text of the lines of these kinds."""
    return [(line.old, line.new, line.head + line.changed + line.tail) for line in lines if line.kind in kinds]


def test_a_change_in_its_place() -> None:
    """What is gone and what is new, with the lines around, their numbers, and the words that changed."""
    found = compare(
        "one\ntwo old words\nthree\nfour\nfive\nsix\nseven", "one\ntwo new words\nthree\nfour\nfive\nsix\nseven"
    )
    assert found.lines == [
        Line("same", 1, 1, "one"),
        Line("gone", 2, None, "two ", "old", " words"),
        Line("new", None, 2, "two ", "new", " words"),
        Line("same", 3, 3, "three"),
        Line("same", 4, 4, "four"),
        Line("same", 5, 5, "five"),
        Line("skipped", None, None, "2"),
    ]
    assert (found.gone, found.new, found.coarse, found.cut) == (1, 1, False, False)


def test_equal_texts_have_none() -> None:
    """No lines at all where nothing changed."""
    for text in ("", "x\n" * 100_000):
        assert compare(text, text).lines == []


@given(old=LINES, new=LINES)
def test_the_new_text_can_be_read_off_it(old: list[str], new: list[str]) -> None:
    """Taking out what is gone and putting in what is new leads from one text to the other."""
    found = compare("\n".join(old), "\n".join(new))
    before, after = "\n".join(old).split("\n"), "\n".join(new).split("\n")
    gone = {number: text for number, _, text in texts(found.lines, "gone")}
    came = {number: text for _, number, text in texts(found.lines, "new")}
    assert all(before[number - 1] == text for number, text in gone.items() if number)
    assert all(after[number - 1] == text for number, text in came.items() if number)
    kept = [text for number, text in enumerate(before, 1) if number not in gone]
    assert kept == [text for number, text in enumerate(after, 1) if number not in came]
    for one, other, text in texts(found.lines, "same"):
        assert one is not None
        assert other is not None
        assert before[one - 1] == after[other - 1] == text
    assert (found.gone, found.new) == (len(gone), len(came))


def hostile() -> dict[str, tuple[str, str]]:
    """Pairs of texts of up to 262,144 characters made to cost much."""
    chance = random.Random(5)
    repeated = [str(number // 8) for number in range(2_000)]
    shuffled = chance.sample(repeated, len(repeated))

    def alternating(mark: str, times: int, lines: int = 1_000) -> str:
        return "\n".join(f"{number // times}\n{mark}{number}" for number in range(lines))

    return {
        "line ends": ("\n" * 262_144, "y" + "\n" * 262_142 + "z"),
        "one letter lines": ("a\n" * 131_072, "b\n" * 131_072),
        "one line": ("a" * 262_144, "b" + "a" * 262_143),
        "repeated and shuffled": ("\n".join(repeated), "\n".join(shuffled)),
        "every other line": (alternating("a", 1), alternating("b", 1)),
        "every other line, repeated": (alternating("a", 8), alternating("b", 8)),
        "every other line of many": (alternating("a", 1, 20_000), alternating("b", 1, 20_000)),
        "every other line, hardly any other": (alternating("a", 200), alternating("b", 200)),
        "few letters": ("\n".join(chance.choices("abc", k=2_000)), "\n".join(chance.choices("abc", k=2_000))),
        "two letters": ("\n".join(chance.choices("ab", k=100_000)), "\n".join(chance.choices("ab", k=100_000))),
        "long lines": tuple("\n".join("x" * 1_000 + mark + str(n) for n in range(250)) for mark in "ab"),  # type: ignore[dict-item]
    }


@pytest.mark.parametrize("name", hostile())
def test_nothing_takes_long(name: str) -> None:
    """Texts made to be slow to compare are told roughly instead, and what is shown is bounded."""
    old, new = hostile()[name]
    started = process_time()
    found = compare(old, new)
    assert process_time() - started < SECONDS
    assert 0 < len(found.lines) <= MAX_SHOWN
    assert all(len(line.head + line.changed + line.tail) < 2 * WIDE for line in found.lines)


def test_rough_differences_say_so() -> None:
    """Where lines were not compared one by one the result says it, and shows how both parts begin."""
    old, new = (f"{mark}\n" * 10_000 for mark in "ab")
    found = compare(f"head\n{old}tail", f"head\n{new}tail")
    assert found.coarse
    assert (found.gone, found.new) == (10_000, 10_000)
    assert len(texts(found.lines, "gone")) == len(texts(found.lines, "new")) == MAX_BLOCK
    assert texts(found.lines, "skipped") == [(None, None, "9800"), (None, None, "9800")]
    assert texts(found.lines, "same") == [(1, 1, "head"), (10_002, 10_002, "tail")]


def test_what_is_left_out_is_said() -> None:
    """A result that is too long is cut, and says so; a long line shows what changed in it, wherever that is."""
    old, new = ("\n".join(f"{mark if n % 2 else ''}{n}" for n in range(2_000)) for mark in "ab")
    assert compare(old, new).cut
    far = compare("x " * 5_000 + "old" + " y" * 5_000, "x " * 5_000 + "new" + " y" * 5_000).lines
    assert [line.changed for line in far] == ["old", "new"]
    assert all("characters)" in line.head and "more characters)" in line.tail for line in far)
    assert difference.compare("a b", "a c").lines[0].head == "a "
