"""Logging: readable or JSON, bounded, and never what a record says."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from indexer import logs
from indexer.cli import run_async
from indexer.errors import DatabaseUnavailable
from indexer.logs import MAX_KEYS, MAX_TEXT, OncePer, configure, fit, printable, render_exception

SECRET = "the record's text"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("indexer")
    before = (root.handlers[:], root.level, ours.level)
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def logger() -> structlog.stdlib.BoundLogger:
    return structlog.stdlib.get_logger("indexer.test")


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def raised(error: Exception) -> Exception:
    try:
        local_variable_with_content = SECRET
        assert local_variable_with_content
        raise error
    except Exception as caught:
        return caught


def test_elsewhere_than_on_a_terminal_it_is_json() -> None:
    """One JSON object a line, with level, logger, UTC time in ISO 8601 and the values given."""
    stream = io.StringIO()
    configure("info", "auto", stream)
    logger().info("caught up", source="firehose:a", seq=7)
    [line] = lines(stream)
    assert {key: line[key] for key in ("event", "level", "logger", "source", "seq")} == {
        "event": "caught up",
        "level": "info",
        "logger": "indexer.test",
        "source": "firehose:a",
        "seq": 7,
    }
    assert datetime.fromisoformat(str(line["timestamp"])).utcoffset() == timedelta(0)


def test_on_a_terminal_it_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` on a terminal is coloured text, without colours where NO_COLOR asks for it."""
    coloured, plain = Terminal(), Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    configure("info", "auto", coloured)
    logger().info("caught up", seq=7)
    monkeypatch.setenv("NO_COLOR", "1")
    configure("info", "auto", plain)
    logger().info("caught up", seq=7)
    assert "\x1b[" in coloured.getvalue()
    assert "\x1b" not in plain.getvalue()
    assert "caught up" in plain.getvalue()
    assert "seq=7" in plain.getvalue()


def test_the_format_asked_for_wins_over_the_terminal() -> None:
    """``json`` on a terminal is JSON, ``console`` elsewhere is text without colours."""
    terminal, file = Terminal(), io.StringIO()
    configure("info", "json", terminal)
    logger().info("x")
    configure("info", "console", file)
    logger().info("x")
    assert lines(terminal)[0]["event"] == "x"
    assert not file.getvalue().startswith("{")
    assert "\x1b" not in file.getvalue()


def test_the_level_is_ours_and_libraries_only_warn() -> None:
    """Debug shows what we say, not what the libraries chat about; their warnings come in the same form."""
    stream = io.StringIO()
    configure("debug", "json", stream)
    logger().debug("ours")
    for name in ("websockets.client", "asyncio", "aiohttp.server"):
        logging.getLogger(name).info("chat")
        logging.getLogger(name).warning("careful: %s", "x")
    assert [line["event"] for line in lines(stream)] == ["ours", *["careful: x"] * 3]
    configure("warning", "json", stream)
    logger().info("kept back")
    assert len(lines(stream)) == 4


def test_configuring_again_replaces_what_was() -> None:
    """Two calls don't make each line appear twice."""
    first, second = io.StringIO(), io.StringIO()
    configure("info", "json", first)
    configure("info", "json", second)
    logger().info("once")
    logging.getLogger("other").warning("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 2


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_record_content_whatever_is_passed(log_format: str) -> None:
    """Mappings, objects and bytes show as what they are, never as what they hold."""
    stream = io.StringIO()
    configure("debug", "json" if log_format == "json" else "console", stream)
    logger().warning("x", value={"content": SECRET}, block=SECRET.encode(), items=[{"a": SECRET}], other={SECRET})
    text = stream.getvalue()
    assert SECRET not in text
    assert "<dict>" in text
    assert f"<{len(SECRET)} bytes>" in text


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_exceptions_show_where_but_not_what(log_format: str) -> None:
    """A traceback has frames, no local variables, no source of values, and no message that may quote input."""
    stream = io.StringIO()
    configure("info", "json" if log_format == "json" else "console", stream)
    try:
        raise raised(KeyError(SECRET)) from raised(ValueError(SECRET))
    except KeyError:
        logger().exception("failed")
    text = stream.getvalue()
    assert SECRET not in text
    assert "test_logs.py" in text
    assert "KeyError: (message withheld: it may quote input)" in text
    assert "ValueError: (message withheld" in text


def test_our_own_errors_show_their_message() -> None:
    """Errors of this package hold no content by contract, and those of the system none by nature."""
    text = render_exception(raised(DatabaseUnavailable("no answer from host h")))
    assert text.endswith("DatabaseUnavailable: no answer from host h")
    assert "Connection refused" in render_exception(ConnectionRefusedError(111, "Connection refused"))


def test_groups_and_causes_are_told() -> None:
    """What a TaskGroup raises is told to the last member, with causes, and a circle of causes ends."""
    inner = raised(OSError(5, "inner"))
    inner.__cause__ = raised(OSError(6, "cause"))
    inner.__cause__.__cause__ = inner
    text = render_exception(ExceptionGroup(SECRET, [raised(TypeError("first")), inner]))
    assert "TypeError: first" in text
    assert "inner" in text
    assert "cause" in text
    assert "which led to:" in text
    assert SECRET not in text


def test_asyncio_does_not_quote_for_us() -> None:
    """An exception nobody awaited is reported by asyncio with its repr: that line is left out."""
    stream = io.StringIO()
    configure("info", "json", stream)
    loop = asyncio.new_event_loop()
    loop.call_exception_handler(
        {"message": "never retrieved", "future": SECRET, "exception": raised(ValueError(SECRET))}
    )
    loop.close()
    [line] = lines(stream)
    assert line["event"] == "never retrieved"
    assert SECRET not in stream.getvalue()


def test_a_terminal_obeys_no_text_from_outside() -> None:
    """Control characters, in a message or a value, are written as escapes: no clearing, no faked lines."""
    stream = Terminal()
    configure("info", "console", stream)
    logger().info("x\x1b[2J\nfaked line", host="a\r\x9b2Jb\u202e")
    text = stream.getvalue()
    assert "\x1b[2J" not in text
    assert text.count("\n") == 1
    assert not {"\r", "\x9b", "\u202e"} & set(text)


@given(
    st.text()
    | st.binary()
    | st.floats()
    | st.none()
    | st.lists(st.text(), max_size=40)
    | st.dictionaries(st.text(), st.text())
)
def test_every_value_is_bounded_and_can_be_written(value: object) -> None:
    """Whatever is logged becomes short text or a number that JSON and UTF-8 can hold."""
    json.dumps(fit(value)).encode()
    assert len(str(fit(value))) <= (logs.MAX_ITEMS + 1) * (MAX_TEXT * 12)


def test_a_connection_given_up_while_its_host_is_looked_up(caplog: pytest.LogCaptureFixture) -> None:
    """A stop that comes meanwhile says nothing of the look-up that nobody waits for; what else is forgotten is told."""

    async def given_up() -> None:
        loop = asyncio.get_running_loop()
        connecting = asyncio.ensure_future(loop.create_connection(asyncio.Protocol, "host.invalid", 1))
        await asyncio.sleep(0)  # the look-up has begun
        connecting.cancel()
        with suppress(asyncio.CancelledError):
            await connecting
        for _ in range(8):  # as many look-ups as could be under way at once end after it
            with suppress(OSError):
                await loop.getaddrinfo("host.invalid", 2)

    async def forgotten() -> None:
        asyncio.get_running_loop().create_future().set_exception(OSError("nobody asked"))

    run_async(given_up())
    gc.collect()
    assert caplog.messages == []
    run_async(forgotten())
    gc.collect()
    assert [message.partition("\n")[0] for message in caplog.messages] == ["Future exception was never retrieved"]


def test_long_text_is_cut() -> None:
    """A text is cut, visibly; a long list too."""
    assert printable("a" * (MAX_TEXT + 1)) == "a" * MAX_TEXT + "…"
    assert printable("a" * MAX_TEXT) == "a" * MAX_TEXT
    assert fit(list(range(12)))[-1] == "… 2 more"  # type: ignore[index]


class Clock:
    """A clock that a test sets by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_repeats_are_kept_back_and_counted() -> None:
    """A key passes once in the time given, then tells how often it was kept back; keys don't mix."""
    clock = Clock()
    often = OncePer(10, clock)
    assert [often.allows("a"), often.allows("a"), often.allows("a"), often.allows("b")] == [0, None, None, 0]
    clock.now = 9.9
    assert often.allows("a") is None
    clock.now = 10
    assert often.allows("a") == 3
    assert often.allows("a") is None


def test_a_flood_of_different_keys_is_no_flood_of_lines() -> None:
    """Beyond the keys remembered all others share one; when the old ones have aged, there is room again."""
    clock = Clock()
    often = OncePer(10, clock)
    passed = sum(often.allows(f"did:{n}") is not None for n in range(10 * MAX_KEYS))
    assert passed == MAX_KEYS + 1
    clock.now = 20
    assert often.allows("another") == 0
    assert often.allows("another") is None
