"""Two texts side by side, by lines: what is gone, what is new. Bounded in time and size, whoever wrote them.

Lines that the texts begin and end with in common are left out first. What is between is compared by difflib if that is
sure to be quick, and else told as one part replaced by another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import Final, Literal

MAX_LINES: Final = 2_000  # on either side, that are compared one by one
MAX_PAIRS: Final = 8_000  # of equal lines, one on either side, blank ones left out: what difflib takes its time by
MAX_SHOWN: Final = 800  # lines of the result
MAX_BLOCK: Final = 200  # lines in a row that are gone, or new
CONTEXT: Final = 3  # lines before and after a change
WIDE: Final = 1_200  # characters of one line that are shown

Kind = Literal["same", "gone", "new", "skipped"]
Opcode = tuple[str, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the result: its numbers in the old and the new text, and what of it changed, between what did not."""

    kind: Kind
    old: int | None
    new: int | None
    head: str = ""
    changed: str = ""
    tail: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """What tells two texts apart: the lines to show, and how many are gone and new in all.

    ``coarse``: they were not compared line by line, that could take long; ``cut``: the result has more lines.
    """

    lines: list[Line]
    gone: int
    new: int
    coarse: bool
    cut: bool


def compare(old_text: str, new_text: str) -> Difference:
    """The difference of two texts; no lines if they are equal."""
    old, new = old_text.split("\n"), new_text.split("\n")
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    left, right = old[head : len(old) - tail], new[head : len(new) - tail]
    coarse = not _is_quick(left, right)
    codes: Sequence[Opcode] = [("replace", 0, len(left), 0, len(right))] if coarse else _opcodes(left, right)
    changes = [(tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in codes if tag != "equal"]
    lines = list(islice(_lines(old, new, changes), MAX_SHOWN + 1))
    return Difference(
        lines[:MAX_SHOWN],
        sum(b - a for _, a, b, _, _ in changes),
        sum(d - c for _, _, _, c, d in changes),
        coarse and bool(lines),
        len(lines) > MAX_SHOWN,
    )


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """How many lines, or characters, both begin with."""
    return next(
        (n for n, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new))
    )


def _is_quick(old: list[str], new: list[str]) -> bool:
    if max(len(old), len(new)) > MAX_LINES:
        return False
    counted = Counter(line for line in old if not _is_blank(line))
    return sum(times * counted[line] for line, times in Counter(new).items()) <= MAX_PAIRS


def _opcodes(old: list[str], new: list[str]) -> Sequence[Opcode]:
    return SequenceMatcher(_is_blank, old, new, autojunk=False).get_opcodes()


def _is_blank(line: str) -> bool:
    return not line or line.isspace()


def _lines(old: list[str], new: list[str], changes: list[Opcode]) -> Iterator[Line]:
    """The changes in order, each with its context; ``skipped`` stands between those that are far apart."""
    shift, shown = 0, 0  # between the numbers of old and new; the first line of old not told yet
    for n, (_, a, b, c, d) in enumerate(changes):
        start = max(shown, a - CONTEXT)
        if start > shown:
            yield Line("skipped", None, None, f"{start - shown}")
        yield from (_same(old, at, at + shift) for at in range(start, a))
        yield from _replaced(old[a:b], new[c:d], a, c)
        shift, end = d - b, changes[n + 1][1] if n + 1 < len(changes) else len(old)
        shown = min(end, b + CONTEXT)
        yield from (_same(old, at, at + shift) for at in range(b, shown))
    if changes and shown < len(old):
        yield Line("skipped", None, None, f"{len(old) - shown}")


def _same(old: list[str], at: int, other: int) -> Line:
    return Line("same", at + 1, other + 1, _start(old[at]))


def _replaced(old: list[str], new: list[str], a: int, c: int) -> Iterator[Line]:
    """Lines that gave way to others; where they are equally many, with what changed within each."""
    paired = len(old) == len(new)
    for n, line in enumerate(old[:MAX_BLOCK]):
        yield _marked("gone", line, new[n] if paired else None, a + n + 1, None)
    if len(old) > MAX_BLOCK:
        yield Line("skipped", None, None, f"{len(old) - MAX_BLOCK}")
    for n, line in enumerate(new[:MAX_BLOCK]):
        yield _marked("new", line, old[n] if paired else None, None, c + n + 1)
    if len(new) > MAX_BLOCK:
        yield Line("skipped", None, None, f"{len(new) - MAX_BLOCK}")


def _marked(kind: Kind, line: str, other: str | None, old: int | None, new: int | None) -> Line:
    if other is None:
        return Line(kind, old, new, "", _start(line))
    head = _whole_words(line, other, _common(line, other))
    back, rest = line[head:][::-1], other[head:][::-1]
    end = len(line) - _whole_words(back, rest, _common(back, rest))
    return Line(kind, old, new, _end(line[:head]), _start(line[head:end]), _start(line[end:], WIDE // 4))


def _whole_words(line: str, other: str, common: int) -> int:
    """As much of what two lines begin with as doesn't end within a word."""
    if line[common : common + 1].isalnum() or other[common : common + 1].isalnum():
        while common and line[common - 1].isalnum():
            common -= 1
    return common


def _start(text: str, most: int = WIDE) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} more characters)"


def _end(text: str) -> str:
    most = WIDE // 4
    return text if len(text) <= most else f"({len(text) - most} characters) … {text[-most:]}"
