"""What docs/scaling.md works out on paper is worked out from what it says was measured."""

from __future__ import annotations

from tests.scaling.figures import derived, parameters, short
from tests.scaling.sources import ROOT


def test_the_table_follows_from_the_measured_values() -> None:
    """Each line of the second table is what the values of the first come to; put it there if one of those changes."""
    text = (ROOT / "docs" / "scaling.md").read_text("utf-8")
    values = parameters(text)
    assert values.keys() == set("ERNDPSFB")
    lines = list(derived(values))
    assert [line for line in lines if line not in text.splitlines()] == []
    assert [line for line in derived(values | {"S": values["S"] * 2}) if line in text.splitlines()] == []


def test_numbers_are_short() -> None:
    """Two digits, however large or small."""
    assert [short(value) for value in (0.000512, 0.0634, 5.64, 45, 11_574)] == [
        "0.00051",
        "0.063",
        "5.6",
        "45",
        "12,000",
    ]
