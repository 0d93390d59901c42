"""Arrays of texts that are passed to the server as one text."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.errors import BatchRefused
from indexer.store.statements import NULL_LINE, PROMPTS, _filled_in, as_lines, line_parameters, statement
from tests.indexing import Sql

LINE = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=5)
TEXTS = st.lists(st.none() | LINE.filter(lambda text: text != NULL_LINE), max_size=5)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS)
async def test_any_texts_arrive_as_they_are(sql: Sql, texts: list[str | None]) -> None:
    """None and the empty text are told apart, also alone, and where there are none at all there are none."""
    passed = statement("kept_rows", "agent").partition("unnest(")[2].partition(",\n")[0].split("[2:]")[0] + "[2:]"
    assert "$1" in passed
    assert await sql.fetchval(f"select {passed}", as_lines(texts)) == texts


def test_a_line_break_is_refused() -> None:
    """One value too many would move all that follow it to other rows."""
    with pytest.raises(BatchRefused):
        as_lines(["did:plc:a", "b\nc"])


def test_every_parameter_is_passed_in_one_way() -> None:
    """What is passed as lines is nowhere in its statement taken for an array."""
    for name, table in (("kept_rows", "agent"), ("put_rows", PROMPTS), ("put_recompiles", None), ("refresh", None)):
        numbers = line_parameters(name, table)
        assert numbers
        assert not any(f"${number}::text" in _filled_in(name, table) for number in numbers)
