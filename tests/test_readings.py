"""One text, one reading: SQL, the parser and the oracle take the same texts for instants and for references."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.simulator.freshness import canonical_reference, instant
from indexer.syntax import MAX_DID, parse_instant, parse_record_uri
from tests.frames import AGENT, DID, key
from tests.histories import INSTANTS, REFERENCES, SPACE, examples
from tests.indexing import Sql

MICROS = "select (extract(epoch from letta_store.instant(x)) * 1000000)::bigint from unnest($1::text[]) as t (x)"
COLLATIONS = "select distinct on (collprovider) collname from pg_collation where collencoding in (-1, 6)"
BEGINNING = datetime(1, 1, 1, tzinfo=UTC)
TO_EPOCH = (datetime(1970, 1, 1, tzinfo=UTC) - BEGINNING) // timedelta(microseconds=1)

_two = st.integers(0, 99).map("{:02}".format)
_years = st.sampled_from(
    ["0000", "0001", "1900", "1970", "2000", "2023", "2024", "9999", "10000", "\u0662\u0660\u0662\u0664"]
)
_months = st.one_of(st.sampled_from(["00", "01", "02", "04", "12", "13"]), _two)
_days = st.one_of(st.sampled_from(["00", "01", "28", "29", "30", "31", "32"]), _two)
_hours = st.one_of(st.sampled_from(["00", "15", "16", "23", "24"]), _two)
_minutes = st.one_of(st.sampled_from(["00", "59", "60"]), _two)
_fractions = st.one_of(st.just(""), st.text("0159", max_size=70).map(".{}".format))
_zones = st.one_of(
    st.sampled_from(["Z", "", "z", "+0100", "+01", " UTC", "-00:00"]),
    st.builds("{}{}:{}".format, st.sampled_from("+-"), _hours, _minutes),
)
_datetimes = st.builds(
    "{}-{}-{}{}{}:{}:{}{}{}{}".format,
    _years, _months, _days, st.sampled_from("TTTTt "), _hours, _minutes, _minutes, _fractions, _zones,
    st.sampled_from(["", "", "", "", "\n", " "]),
)  # fmt: skip


@examples(40)
@given(st.lists(st.one_of(_datetimes, st.text(max_size=30).filter(lambda text: "\0" not in text)), max_size=100))
async def test_all_read_the_same_instants(sql: Sql, drawn: list[str]) -> None:
    """SQL reads what the oracle reads; so does the parser, which also takes lower-case letters, as RFC 3339 does."""
    texts = INSTANTS + drawn
    by_oracle = [instant(text) for text in texts]
    by_sql = [row[0] for row in await sql.fetch(MICROS, texts)]
    assert by_sql == [None if micros is None else micros - TO_EPOCH for micros in by_oracle]
    for text, micros in zip(texts, by_oracle, strict=True):
        if "t" not in text and "z" not in text:
            assert parse_instant(text) == (None if micros is None else BEGINNING + timedelta(microseconds=micros))


async def test_digits_of_other_scripts_are_none(sql: Sql) -> None:
    """Whatever a locale takes for a digit: an instant is written in ASCII, and anything else is no error."""
    collations = await sql.fetch(COLLATIONS)
    known = {row["collname"] for row in collations} - {"unicode"}  # listed by servers without ICU as well
    for name in known:
        query = f'select letta_store.instant($1 collate "{name}")'
        assert await sql.fetchval(query, "\u0662\u0660\u0662\u0664-01-02T03:04:05Z") is None


TOO_LONG = "did:web:" + "x" * (MAX_DID - 7)
NAMED = "select letta_store.record_uri(x) from unnest($1::text[]) as t (x)"

_dids = st.one_of(
    st.sampled_from([DID, "did:web:a.example", "did:web:localhost%3A80", "did:plc:", "did:PLC:x", "alice.test"]),
    st.sampled_from(["did:web:" + "x" * (MAX_DID - 8), TOO_LONG, "did:x:y:", "did:x:y%"]),
)
_labels = st.sampled_from(["a", "B", "9", "a-b", "-a", "a-", "", "x" * 63, "x" * 64, "\u00e9"])
_nsids = st.one_of(st.sampled_from([AGENT, "space"]), st.lists(_labels, max_size=8).map(".".join))
_rkeys = st.sampled_from(
    [key(1), "self", ".", "..", "...", "", "a:b~c_d.e-", "k" * 512, "k" * 513, "a b", "a%20", "a/b", "k\n"]
)
_records = st.builds("{}/{}/{}".format, _dids, _nsids, _rkeys)
_spaces = st.one_of(
    st.builds("at://{}/space/{}/{}/{}".format, _dids, _nsids, _rkeys, _records),
    st.builds("at:space/{}/{}/{}/{}".format, _dids, _nsids, _rkeys, _records),
    _records.map(f"at://{SPACE}/{{}}".format),
)
_references = st.one_of(
    _records.map("at://{}".format),
    _spaces,
    st.builds("{}{}".format, _records.map("at://{}".format), st.sampled_from("/?#\n ")),
)


@examples(60)
@given(st.lists(_references, max_size=100))
async def test_all_read_the_same_references(sql: Sql, drawn: list[str]) -> None:
    """A reference names the same record to SQL, to the parser and to the oracle, or none to all of them.

    Ours is that a DID ends at 1,024 bytes and a reference at 2,000: the oracle knows nothing of that.
    """
    texts = [text for text in (*REFERENCES, *drawn) if len(text) <= 2_000]
    by_sql = [row[0] for row in await sql.fetch(NAMED, texts)]
    by_parser = [None if (parsed := parse_record_uri(text)) is None else str(parsed) for text in texts]
    assert by_sql == by_parser
    by_oracle = [None if TOO_LONG in text else canonical_reference(text) for text in texts]
    assert by_oracle == by_parser


@pytest.mark.parametrize(
    "text", [f"at://{TOO_LONG}/{AGENT}/k", "at://" + "x" * 8_000, f"at://{DID}/{AGENT}/{'k' * 2_000}"]
)
async def test_what_is_too_long_names_nothing(sql: Sql, text: str) -> None:
    """However long a reference is, it is read in no time and names nothing."""
    assert await sql.fetchval("select letta_store.record_uri($1)", text) is None
