"""Query strings: what the page itself makes is understood, everything else refused, and never quoted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.page import asked
from indexer.page.asked import Unusable, parse_query
from indexer.page.shown import link

DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
PARAMETERS = {
    "did": asked.THIS_DID,
    "rkey": asked.RKEY,
    "cid": asked.CID,
    "since": asked.INSTANT,
    "state": asked.STATE,
    "prefix": asked.PREFIX,
}


def test_links_of_the_page_are_understood() -> None:
    """What ``link`` makes comes back as it went in; what was left out is ''."""
    given = {"did": DID, "rkey": "a~b:c.d_e-1", "since": "2024-01-02T03:04:05.000006+00:00", "state": "wanted"}
    query = link("/x", **given, cid=None).partition("?")[2]
    assert parse_query(query, PARAMETERS) == given | {"cid": "", "prefix": ""}
    assert asked.instant(given["since"]).isoformat() == given["since"]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "did=",
        f"did={DID}&did={DID}",
        f"did={DID}&other=1",
        f"did={DID}&rkey=a/b",
        f"did={DID}&rkey=%00",
        f"did={DID}&rkey=a%FF",
        f"did={DID}&rkey={'a' * 513}",
        f"did={DID}&cid={'a' * 129}",
        f"did={DID}&since=yesterday",
        f"did={DID}&since=0000-01-01T00:00:00Z",
        f"did={DID}&state=any",
        f"did={DID}&prefix=a'b",
        f"did={DID}&x",
        "did=nobody",
        "did=did:plc:a;drop",
        "&".join(f"did={DID}" for _ in range(9)),
    ],
)
def test_anything_else_is_refused(query: str) -> None:
    """Unknown, repeated, missing and malformed parts: an error that quotes nothing."""
    with pytest.raises(Unusable) as error:
        parse_query(query, PARAMETERS)
    assert DID not in str(error.value)


@given(st.text(max_size=200))
def test_no_query_string_breaks_it(query: str) -> None:
    """Whatever is asked for, either every part passes its check or the one error is raised."""
    try:
        found = parse_query(query, PARAMETERS)
    except Unusable:
        return
    assert found.keys() == PARAMETERS.keys()
    assert all(PARAMETERS[name].check(value) for name, value in found.items() if value)
