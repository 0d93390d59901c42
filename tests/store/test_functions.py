"""The functions of the schema that have a twin in Python: both say the same of anything."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.syntax import parse_instant, parse_record_uri, tid_micros, tid_of
from tests.indexing import Sql

# The database is only asked, never changed: examples may share it.
ASKED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
A_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
DIDS = st.sampled_from(
    ["did:plc:abc", "did:web:a.example", "did:web:a%3A1", "did:x:y:", "did:X:y", "did:plc:", "a.example"]
)
LABEL = st.from_regex(r"[a-z0-9-]{1,4}", fullmatch=True)
NSIDS = st.one_of(
    st.sampled_from(["com.example.thing", "a.b.c", "space", "a.b"]),
    st.lists(LABEL, min_size=1, max_size=4).map(".".join),
)
RKEYS = st.one_of(st.sampled_from(["self", ".", "..", "...", "", "a b", "a:b~_-."]), A_TEXT)
PARTS = st.one_of(DIDS, NSIDS, RKEYS, st.just("space"))
RECORDS = st.tuples(DIDS, NSIDS, RKEYS).map(list)
SPACES = st.tuples(DIDS, st.just("space"), NSIDS, RKEYS, DIDS, NSIDS, RKEYS).map(list)
SEGMENTS = st.one_of(RECORDS, SPACES, st.lists(PARTS, max_size=8))
URIS = st.one_of(
    SEGMENTS.map(lambda parts: "at://" + "/".join(parts)),
    SPACES.map(lambda parts: "at:space/" + "/".join([parts[0], *parts[2:]])),
    st.tuples(
        st.sampled_from(["at:", "AT://", "at://", " at://", "at:space/", ""]),
        SEGMENTS,
        st.sampled_from(["", "/", "#", "?x", "\n"]),
    ).map(lambda parts: parts[0] + "/".join(parts[1]) + parts[2]),
    A_TEXT,
)
NUMBER = st.integers(0, 99).map("{:02}".format)
ZONE = st.one_of(
    st.sampled_from(["Z", "z", "", "+00:00", "-00:00", "+15:59", "+23:59", "-23:59", "+24:00", "+0100"]), A_TEXT
)
FRACTION = st.one_of(st.just(""), st.from_regex(r"\.[0-9]{0,12}", fullmatch=True))
YEAR = st.one_of(
    st.sampled_from(["0000", "0001", "9999", "2000", "1900", "2024", "10000"]), st.integers(0, 9999).map("{:04}".format)
)
DATETIMES = st.one_of(
    st.tuples(YEAR, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, FRACTION, ZONE).map(
        lambda p: "{}-{}-{}T{}:{}:{}{}{}".format(*p)
    ),
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    st.tuples(st.sampled_from(["0001-01-01T00:00:00", "9999-12-31T23:59:59.9999999", "2024-02-29T23:59:59"]), ZONE).map(
        "".join
    ),
    A_TEXT,
)


@given(texts=st.lists(URIS, min_size=1, max_size=50))
@ASKED
async def test_record_uri(sql: Sql, texts: list[str]) -> None:
    """SQL and Python agree on which record a reference names, and on how its URI is written."""
    rows = await sql.fetch(
        "select letta_store.record_uri(x) as uri from unnest($1::text[]) with ordinality u (x, n) order by n", texts
    )
    parsed = [parse_record_uri(text) for text in texts]
    expected = [None if one is None else str(one) for one in parsed]
    assert dict(zip(texts, [row["uri"] for row in rows], strict=True)) == dict(zip(texts, expected, strict=True))


@given(texts=st.lists(DATETIMES, min_size=1, max_size=50))
@ASKED
async def test_instant(sql: Sql, texts: list[str]) -> None:
    """SQL and Python agree on which instant a text names, to the microsecond, and which name none.

    Python also takes the lower-case letters that RFC 3339 allows and lexicons don't.
    """
    rows = await sql.fetch(
        "select letta_store.instant(x) as instant from unnest($1::text[]) with ordinality u (x, n) order by n", texts
    )
    expected = [parse_instant(text) if text == text.upper() else None for text in texts]
    assert dict(zip(texts, [row["instant"] for row in rows], strict=True)) == dict(zip(texts, expected, strict=True))


@given(micros=st.lists(st.integers(0, (1 << 53) - 1), min_size=1, max_size=20), clock_id=st.integers(0, 1023))
@ASKED
async def test_rev_time(sql: Sql, micros: list[int], clock_id: int) -> None:
    """SQL reads the time in a rev as Python does."""
    revs = [tid_of(one, clock_id) for one in micros]
    rows = await sql.fetch(
        "select extract(epoch from letta_store.rev_time(x)) * 1000000 as micros "
        "from unnest($1::text[]) with ordinality u (x, n) order by n",
        revs,
    )
    assert [int(row["micros"]) for row in rows] == [tid_micros(rev) for rev in revs]


async def test_functions_depend_on_no_setting(sql: Sql) -> None:
    """No function of ours claims to be immutable and reads a setting: DateStyle and TimeZone change nothing."""
    texts = ["2024-01-02T03:04:05.678901+05:30", "0001-01-01T00:00:00Z", "2024-02-29T00:00:00-11:00"]
    query = "select letta_store.instant(x) as t from unnest($1::text[]) x"
    plain = await sql.fetch(query, texts)
    await sql.execute(
        "set datestyle = 'German, DMY'; set timezone = 'Asia/Kathmandu'; set intervalstyle = 'sql_standard'"
    )
    assert await sql.fetch(query, texts) == plain


async def test_functions_take_anything(sql: Sql) -> None:
    """Every function behind a generated column gives a value or NULL for any JSON, never an error."""
    odd = [
        "null",
        "1",
        "[]",
        "{}",
        '""',
        '{"a": null}',
        '{"a": [1]}',
        '{"a": "x"}',
        '{"a": 1e400}',
        '{"a": true}',
        '{"a": {"a": "x"}}',
    ]
    for name in ("text_at", "boolean_at", "number_at"):
        values = await sql.fetch(f"select letta_store.{name}(v::jsonb, 'a') as v from unnest($1::text[]) v", odd)
        assert sum(row["v"] is not None for row in values) == 1, name
