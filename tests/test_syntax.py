"""Identifiers: what counts as one, what doesn't, and what is read out of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.syntax import (
    AtUri,
    CollectionFilter,
    is_at_uri,
    is_datetime,
    is_did,
    is_handle,
    is_nsid,
    is_record_key,
    is_tid,
    parse_instant,
    parse_path,
    parse_record_uri,
    parse_space_uri,
    tid_micros,
    tid_of,
)

DID = "did:plc:q6q7u4l63fqnr34rwacbq2mv"
AGENT = "xyz.quasigod.lab.letta.agent"
SPACE = f"at://{DID}/space/xyz.quasigod.lab.letta.space/self"


@pytest.mark.parametrize(
    "text",
    [DID, "did:web:example.com", "did:web:localhost%3A1234", "did:m:v", "did:method::::val", "did:method:-", "did:a:.",
     "did:method:VAL", "did:m:" + "v" * 1018],
)  # fmt: skip
def test_did(text: str) -> None:
    """A DID of any method is one, up to 1,024 bytes."""
    assert is_did(text)


@pytest.mark.parametrize(
    "text",
    ["", "did", "did:", "did:plc", "did:plc:", "DID:plc:abc", "did:PLC:abc", "did:m123:val", "did:plc:abc:",
     "did:plc:a%",
     "did:plc:a/b", "did:plc:a?b", "did:plc:a#b", "did:plc:a b", "did:plc:a\n", "did:plc:é", " did:plc:a",
     "did:plc:a\0",
     "did:m:" + "v" * 1019],
)  # fmt: skip
def test_no_did(text: str) -> None:
    """What is no DID is refused: other case, no method, endings, spaces, over 1,024 bytes."""
    assert not is_did(text)


@pytest.mark.parametrize("text", ["a.co", "xn--ls8h.test", "A.B.C", "8.cn", "a" * 63 + ".com", "laptop.local"])
def test_handle(text: str) -> None:
    """A domain name of two labels or more is a handle."""
    assert is_handle(text)


@pytest.mark.parametrize(
    "text",
    ["", "com", "a.", ".a.b", "a..b", "a_b.c", "-a.b", "a-.b", "a.8", "127.0.0.1", "é.fr", "a.b\n", "a" * 64 + ".com",
     "a." * 126 + "com"],
)  # fmt: skip
def test_no_handle(text: str) -> None:
    """One label, numeric ends, wrong letters and lengths are no handles."""
    assert not is_handle(text)


@pytest.mark.parametrize(
    "text",
    [AGENT, "a.b.c", "com.example.fooBarV2", "cn.8.lex.stuff", "a-0.b-1.c", "one.2.three",
     "xn--fiqs8s.xn--a.record.two",
     "com." + "o" * 63 + ".foo", "com.example." + "o" * 63, "a." * 126 + "a." + "n" * 63],
)  # fmt: skip
def test_nsid(text: str) -> None:
    """An NSID has an authority of two labels or more and a name; 317 characters at most."""
    assert is_nsid(text)


@pytest.mark.parametrize(
    "text",
    ["", "com.example", "a.", ".a.b.c", "a..b.c", "1.0.0.record", "com.example.foo.*", "com.example.2",
     "com.example.f-o",
     "com.example-.foo", "com.example.p_st", "com.exa💩ple.thing", "a.b.c ", "a.b.c\n", "com." + "o" * 64 + ".foo",
     "com.example." + "o" * 64, "a." * 126 + "a." + "n" * 64, "a." * 126 + "aa.n"],
)  # fmt: skip
def test_no_nsid(text: str) -> None:
    """Wild cards, names with digits first or hyphens, wrong lengths are no NSIDs."""
    assert not is_nsid(text)


@pytest.mark.parametrize("text", ["self", "a", "...", "a:b", "~1.2-3_", "_", "o" * 512])
def test_record_key(text: str) -> None:
    """The allowed letters make a record key, up to 512."""
    assert is_record_key(text)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a b", "a%20", "#", "é", "a\n", "o" * 513])
def test_no_record_key(text: str) -> None:
    """Dots alone, other letters, nothing and too much are no record keys."""
    assert not is_record_key(text)


@pytest.mark.parametrize("text", ["3jzfcijpj2z2a", "7777777777777", "3zzzzzzzzzzzz", "2222222222222", "jzzzzzzzzzzzz"])
def test_tid(text: str) -> None:
    """Thirteen characters of sortable base32 with the high bit clear are a TID."""
    assert is_tid(text)
    assert tid_micros(text) is not None


@pytest.mark.parametrize(
    "text",
    ["", "3jzfcijpj2z21", "0000000000000", "3JZFCIJPJ2Z2A", "3jzfcijpj2z2aa", "3jzfcijpj2z2", "3jzf-cij-pj2z",
     "kjzfcijpj2z2a",
     "zzzzzzzzzzzzz", "3jzfcijpj2z2\n", "３jzfcijpj2z2a"],
)  # fmt: skip
def test_no_tid(text: str) -> None:
    """Other alphabets, lengths and a set high bit make no TID, and such a text has no time."""
    assert not is_tid(text)
    assert tid_micros(text) is None


def test_tid_of_a_known_time() -> None:
    """A TID counts microseconds since the epoch above ten bits of clock id."""
    assert tid_of(0) == "2222222222222"
    assert tid_of(0, 31) == "222222222222z"
    assert tid_of(1) == "2222222222322"
    assert tid_of((1 << 54) - 1, 1023) == "jzzzzzzzzzzzz"
    micros = tid_micros("3n3k7rbonkz2q")
    assert micros is not None
    assert datetime.fromtimestamp(micros / 1e6, UTC).year == 2026


@given(st.integers(0, (1 << 54) - 1), st.integers(0, 1023), st.integers(0, (1 << 54) - 1))
def test_tids_carry_and_order_time(micros: int, clock_id: int, later: int) -> None:
    """A TID gives back its time, and TIDs sort as their times do."""
    tid = tid_of(micros, clock_id)
    assert is_tid(tid)
    assert tid_micros(tid) == micros
    assert (tid < tid_of(later, clock_id)) == (micros < later)


@pytest.mark.parametrize(("micros", "clock_id"), [(-1, 0), (1 << 54, 0), (0, -1), (0, 1024)])
def test_tid_out_of_range(micros: int, clock_id: int) -> None:
    """A time or clock id that doesn't fit is an error, not another TID."""
    with pytest.raises(ValueError, match="range"):
        tid_of(micros, clock_id)


def test_path() -> None:
    """An operation's path splits into collection and record key."""
    assert parse_path(f"{AGENT}/self") == (AGENT, "self")


@pytest.mark.parametrize(
    "path", ["", "/", AGENT, f"{AGENT}/", f"/{AGENT}/a", f"{AGENT}/a/b", "agent/a", f"{AGENT}/..", "a.b.c/é"]
)
def test_no_path(path: str) -> None:
    """A path with another shape, a bad collection or a bad key is none."""
    assert parse_path(path) is None


@given(st.from_regex(r"[a-z-]{1,3}(\.[a-zA-Z1-]{1,3}){0,8}(/?[A-Za-z0-9_.~-]{0,4}){1,2}\n?", fullmatch=True))
def test_a_path_is_its_parts(path: str) -> None:
    """However a path is told, it is one if and only if its parts are a collection and a record key."""
    collection, _, rkey = path.partition("/")
    assert parse_path(path) == ((collection, rkey) if is_nsid(collection) and is_record_key(rkey) else None)


RECORD_URIS = {
    f"at://{DID}/{AGENT}/3abc": AtUri(DID, "", AGENT, "3abc"),
    f"at://did:web:a.b/{AGENT}/a:~.-_": AtUri("did:web:a.b", "", AGENT, "a:~.-_"),
    f"{SPACE}/did:plc:bob/{AGENT}/k": AtUri("did:plc:bob", SPACE, AGENT, "k"),
    f"at:space/{DID}/xyz.quasigod.lab.letta.space/self/did:plc:bob/{AGENT}/k": AtUri("did:plc:bob", SPACE, AGENT, "k"),
}


@pytest.mark.parametrize(("text", "uri"), RECORD_URIS.items())
def test_record_uri(text: str, uri: AtUri) -> None:
    """A record's URI is read in all of its spellings, and written in the canonical one."""
    assert parse_record_uri(text) == uri
    assert str(uri) == text.replace(f"at:space/{DID}/", f"at://{DID}/space/")
    assert parse_record_uri(str(uri)) == uri
    assert is_at_uri(text)


NO_URIS = [
    "", "at://", "at:space/", "at:///", f"AT://{DID}/{AGENT}/k", f"at:/{DID}/{AGENT}/k", f"http://{DID}/{AGENT}/k",
    f"at://{DID}/{AGENT}/k/", f"at://{DID}/{AGENT}/k#/a", f"at://{DID}/{AGENT}/k?a=b", f"at://{DID}/{AGENT}/k ",
    f" at://{DID}/{AGENT}/k", f"at://{DID}/{AGENT}/k/more", f"at://{DID}/{AGENT}//k", f"at://{DID}/{AGENT}/",
    f"at://{DID}/agent/k", f"at://{DID}/{AGENT}/..", f"at://{DID}/{AGENT}/%23", f"at://{DID}/{AGENT}/{'k' * 513}",
    f"at://nothing/{AGENT}/k", f"at://{DID}/{AGENT}/k\0", f"at://{DID}/", f"at://{DID}/space",
    f"at://{DID}/space/{AGENT}",
    f"{SPACE}/", f"{SPACE}/{DID}", f"{SPACE}/{DID}/{AGENT}", f"{SPACE}/{DID}/{AGENT}/k/", f"{SPACE}/a.test/{AGENT}/k",
    f"at://a.test/space/a.b.c/self/{DID}/{AGENT}/k", f"at://{DID}/space/type/self/{DID}/{AGENT}/k",
    f"at://{DID}/space/a.b.c/../{DID}/{AGENT}/k", f"at:space/{DID}/space/a.b.c/self/{DID}/{AGENT}/k",
    f"at:space//{DID}/a.b.c/self/{DID}/{AGENT}/k", "at://did:m:" + "v" * 9000,
]  # fmt: skip


@pytest.mark.parametrize("text", NO_URIS)
def test_no_uri(text: str) -> None:
    """What is malformed is neither a record's URI nor of the format at-uri, under either spelling of spaces."""
    assert parse_record_uri(text) is None
    assert not is_at_uri(text)


@pytest.mark.parametrize(
    "text",
    [
        f"at://{DID}",
        "at://user.test",
        f"at://{DID}/{AGENT}",
        f"at://user.test/{AGENT}/k",
        SPACE,
        f"at:space/{DID}/a.b.c/self",
    ],
)
def test_uri_that_names_no_record(text: str) -> None:
    """Handles, repositories, collections and spaces have the format at-uri, but name no record."""
    assert is_at_uri(text)
    assert parse_record_uri(text) is None


def test_long_dids_are_well_formed_references_only() -> None:
    """A DID over our limit leaves a reference well-formed, but it names nothing that we can hold."""
    text = f"at://did:m:{'v' * 1500}/{AGENT}/k"
    assert is_at_uri(text)
    assert parse_record_uri(text) is None


def test_space_uri() -> None:
    """Both spellings of a space are one space; a record in it is not a space."""
    assert parse_space_uri(SPACE) == SPACE
    assert parse_space_uri(SPACE.replace(f"at://{DID}/space", f"at:space/{DID}")) == SPACE
    for text in ("", f"{SPACE}/", f"{SPACE}/{DID}/{AGENT}/k", f"at://{DID}/{AGENT}/k", f"at://a.test/space/{AGENT}/k"):
        assert parse_space_uri(text) is None


@given(st.text(alphabet="at:/spcedid.#?0-~ é\0\n", max_size=60))
def test_uris_survive_their_text(text: str) -> None:
    """Whatever parses is well-formed, and its text parses to the same again."""
    uri = parse_record_uri(text)
    assert uri is None or (is_at_uri(text) and parse_record_uri(str(uri)) == uri)


DATETIMES = {
    "1985-04-12T23:20:50.123Z": datetime(1985, 4, 12, 23, 20, 50, 123000, UTC),
    "1985-04-12T23:20:50Z": datetime(1985, 4, 12, 23, 20, 50, 0, UTC),
    "1985-04-12T23:20:50.123456789012Z": datetime(1985, 4, 12, 23, 20, 50, 123456, UTC),
    "1985-04-12T23:20:50.12-07:00": datetime(1985, 4, 13, 6, 20, 50, 120000, UTC),
    "1985-04-12T23:20:50+01:45": datetime(1985, 4, 12, 21, 35, 50, 0, UTC),
    "0985-04-12T23:20:50.0+00:00": datetime(985, 4, 12, 23, 20, 50, 0, UTC),
    "2024-02-29T00:00:00Z": datetime(2024, 2, 29, 0, 0, 0, 0, UTC),
}


@pytest.mark.parametrize(("text", "instant"), DATETIMES.items())
def test_datetime(text: str, instant: datetime) -> None:
    """A well-formed datetime is one, and names its instant, cut to microseconds."""
    assert is_datetime(text)
    assert parse_instant(text) == instant
    assert instant.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    ["0000-01-01T00:00:00Z", "0000-02-29T12:00:00.000Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"],
)
def test_datetime_that_nothing_holds(text: str) -> None:
    """A datetime outside the years 1 to 9999 is well-formed and has no instant."""
    assert is_datetime(text)
    assert parse_instant(text) is None


@pytest.mark.parametrize(
    "text",
    ["1985-04-12t23:20:50Z", "1985-04-12T23:20:50z", "1985-04-12T23:20:50-00:00", f"1985-04-12T23:20:50.{'1' * 50}Z"],
)
def test_datetime_of_rfc3339_only(text: str) -> None:
    """Lower case, an unknown offset and endless digits are RFC 3339, but no Lexicon datetime."""
    assert not is_datetime(text)
    assert parse_instant(text) is not None


@pytest.mark.parametrize(
    "text",
    ["", "1985-04-12", "1985-04-12T23:20Z", "1985-04-12T23:20:50", "1985-04-12 23:20:50Z", "1985-04-12_23:20:50Z",
     "1985-04-12T23:20:50.Z", "1985-04-12T23:20:50,5Z", "985-04-12T23:20:50Z", "01985-04-12T23:20:50Z",
     "1985-4-12T23:20:50Z",
     "+001985-04-12T23:20:50Z", "-000001-12-31T23:00:00Z", "1985-04-12T23:20:50+00", "1985-04-12T23:20:50+0000",
     "1985-04-12T23:20:50+24:00", "1985-04-12T23:20:50+00:60", "1985-00-12T23:20:50Z", "1985-13-12T23:20:50Z",
     "1985-04-00T23:20:50Z", "1985-04-31T23:20:50Z", "1985-02-29T23:20:50Z", "1985-04-12T24:00:00Z",
     "1985-04-12T23:60:00Z",
     "1985-06-30T23:59:60Z", " 1985-04-12T23:20:50Z", "1985-04-12T23:20:50Z\n", "１985-04-12T23:20:50Z"],
)  # fmt: skip
def test_no_datetime(text: str) -> None:
    """Missing parts, other separators, digits of other scripts and days that don't exist make no datetime."""
    assert not is_datetime(text)
    assert parse_instant(text) is None


@given(st.datetimes(timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))))
def test_instants_are_those_of_python(moment: datetime) -> None:
    """What Python writes as RFC 3339, in any zone, is read as the same instant, if it is one in UTC."""
    instant = parse_instant(moment.isoformat())
    assert is_datetime(moment.isoformat())
    assert instant == moment if instant else moment.year in {1, 9999}


@pytest.mark.parametrize(
    ("collection", "wanted"),
    [(AGENT, True), ("xyz.quasigod.lab.letta.deep.er", True), ("com.example.thing", True), ("xyz.quasigod.lab.letta",
     False),
     ("xyz.quasigod.lab.lettast.agent", False), ("xyz.quasigod.lab.lettast", False), ("com.example.things", False),
     ("com.example.thing.more", False), ("com.example", False), ("", False)],
)  # fmt: skip
def test_filter(collection: str, wanted: bool) -> None:
    """A pattern's dot counts, an exact name means that name only,
    and the prefixes decide a path as ``matches`` does."""
    wants = CollectionFilter(["xyz.quasigod.lab.letta.*", "com.example.thing"])
    assert wants.matches(collection) is wanted
    assert f"{collection}/rkey".startswith(wants.prefixes) is wanted


def test_filters_are_values() -> None:
    """Order and repetition of patterns don't matter."""
    assert CollectionFilter(["b.c.*", "a.b.c", "b.c.*"]) == CollectionFilter(iter(["a.b.c", "b.c.*"]))
    assert CollectionFilter(["b.c.*", "a.b.c"]).patterns == ("a.b.c", "b.c.*")
    assert CollectionFilter(["b.c.*", "a.b.c"]).prefixes == ("a.b.c/", "b.c.")


@pytest.mark.parametrize(
    ("held", "asked", "covered"),
    [("a.b.*", "a.b.*", True), ("a.b.*", "a.b.c", True), ("a.b.*", "a.b.c.*", True), ("a.b.c.*", "a.b.*", False),
     ("a.b.c", "a.b.*", False), ("a.b.c", "a.b.c.*", False), ("a.b.c.*", "a.b.c", False), ("a.b.*", "a.bc.*", False)],
)  # fmt: skip
def test_filter_covers(held: str, asked: str, covered: bool) -> None:
    """A filter covers another if it wants all that the other does."""
    assert CollectionFilter([held]).covers(CollectionFilter([asked])) is covered


@pytest.mark.parametrize(
    "pattern", ["", "*", ".*", "a.*", "a.b.c*", "a.b*", "a.b.*.c", "a.b.**", "a.b", "A_b.c.*", f"{'a.' * 160}*"]
)
def test_no_filter(pattern: str) -> None:
    """What is neither an NSID nor a prefix that ends in a dot and a star is an error that names it."""
    with pytest.raises(ValueError, match="neither an NSID nor a prefix") as error:
        CollectionFilter([AGENT, pattern])
    assert repr(pattern) in str(error.value)


def test_empty_filter() -> None:
    """A filter without patterns would index nothing, silently: it is an error."""
    with pytest.raises(ValueError, match="no collection"):
        CollectionFilter([])
