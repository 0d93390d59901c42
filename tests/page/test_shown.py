"""How values look: strangers' text made visible, times and numbers for people, links to nowhere but the page."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.page.shown import agent_link, ago, clock, environment, grouped, link, record_link, size, up_to, visible
from tests.frames import AGENT, CONVERSATION, DID, PROMPT, uri

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – text, 漢字 עברית 👩‍🌾\n\ttwo", "plain – text, 漢字 עברית 👩‍🌾\n\ttwo"),
        ("\u202egnp.exe", "⟨U+202E⟩gnp.exe"),
        ("a\x00b\x1b[31m\r", "a⟨U+0000⟩b⟨U+001B⟩[31m⟨U+000D⟩"),
        ("\u2066\u2069\u200b\ufeff\u00ad", "⟨U+2066⟩⟨U+2069⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+00AD⟩"),
        ("\U000e0041", "⟨U+E0041⟩"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, shown: str) -> None:
    """Controls, overrides of direction, tags and what has no width show as their numbers; words stay words."""
    assert visible(text) == shown


@given(st.text())
def test_no_control_gets_through(text: str) -> None:
    """Of the characters that control or can't be seen only line ends, tabs and joiners of words and emoji remain."""
    kept = {one for one in visible(text) if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
    assert {one for one in kept if one not in "\n\t\u200c\u200d"} <= UNUSUAL


# Visible signs that Unicode counts among the formats: of Arabic numbers, of Syriac, of Kaithi.
UNUSUAL = {
    chr(code)
    for code in range(0x110000)
    if unicodedata.category(chr(code)) == "Cf"
    and (code in range(0x600, 0x606) or code in (0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD))
}


@given(st.text())
def test_templates_escape(text: str) -> None:
    """Text in a template never ends up as markup, between tags or in an attribute."""
    page = environment().from_string('<p title="{{ text }}">{{ text|visible }}</p>').render(text=text)
    attribute, _, content = page.removeprefix('<p title="').partition('">')
    assert not set("<>\"'") & set(attribute)
    assert not set("<>\"'") & set(content.removesuffix("</p>"))


def test_links_are_the_pages_own() -> None:
    """Only the URI of a public agent or prompt becomes a link, and that to the page; a prompt is linked as no agent."""
    assert agent_link(uri(AGENT, "a~b")) == record_link(uri(AGENT, "a~b")) == link("/agent", did=DID, rkey="a~b")
    assert (agent_link(uri(PROMPT, "a")), record_link(uri(PROMPT, "a"))) == ("", link("/prompt", did=DID, rkey="a"))
    for other in (
        None,
        1,
        "",
        "javascript:alert(1)",
        "https://example.com",
        uri(CONVERSATION, "a"),
        f"at://alice.test/{AGENT}/a",
        f"at://{DID}/space/com.example.space/self/{DID}/{AGENT}/a",
    ):
        assert agent_link(other) == record_link(other) == ""


def test_parts_of_links_are_quoted() -> None:
    """What goes into a query string can't end it, and nothing goes in for nothing."""
    assert link("/x", a="&b=c#d e", b=None, c="") == "/x?a=%26b%3Dc%23d+e"
    assert link("/x", b=None) == "/x"


@pytest.mark.parametrize(
    ("away", "words"),
    [
        (timedelta(0), "0 s ago"),
        (timedelta(seconds=59.9), "59 s ago"),
        (timedelta(minutes=61), "1 h ago"),
        (timedelta(days=400), "400 d ago"),
        (timedelta(seconds=-90), "in 1 min"),
        (timedelta(milliseconds=-5), "0 s ago"),
    ],
)
def test_ages(away: timedelta, words: str) -> None:
    """How long ago, in the largest unit; a clock that is ahead is said to be."""
    assert ago(NOW - away, NOW) == words


def test_numbers_and_times() -> None:
    """Thousands apart, sizes in their unit, times in UTC to the second, also those of the first centuries."""
    assert (grouped(1234567), up_to(10_000, 10_000), up_to(10_001, 10_000)) == (
        "1\u202f234\u202f567",
        "10\u202f000",
        "10\u202f000+",
    )
    assert (size(999), size(1500), size(2_500_000)) == ("999 B", "1.5 kB", "2.5 MB")
    assert clock(NOW) == "2026-01-02 03:04:05"
    assert clock(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01 00:00:00"
