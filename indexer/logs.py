"""How the daemon logs: readable on a terminal, JSON lines elsewhere, and never a record's content.

``configure`` is called once, by the command line or the daemon. What keeps content out, whoever logs: only words
and numbers are rendered (of bytes, mappings and objects just the type), text is cut and freed of control characters,
and an exception shows its frames without local variables and its message only if it is of a kind whose messages
quote nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from indexer.errors import IndexerError

MAX_TEXT: Final = 300
MAX_ITEMS: Final = 10
MAX_KEYS: Final = 256
_SHARED_KEY: Final = object()

# Messages of these are made of names, types and paths; others (KeyError, ValueError, a driver's) may quote input.
_OPEN: Final = (IndexerError, OSError, ImportError, NameError, AttributeError, TypeError, MemoryError, RecursionError)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def configure(level: str, log_format: Literal["auto", "console", "json"], stream: TextIO) -> None:
    """Send what ``indexer`` logs from ``level`` on, and warnings of every library, to ``stream``.

    ``level`` is debug, info, warning or error. ``auto`` means ``console`` if the stream is a terminal, else ``json``.
    Timestamps are UTC in ISO 8601. May be called again: the last call counts.
    """
    terminal = stream.isatty()
    console = log_format == "console" or (log_format == "auto" and terminal)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[first_line, *_shared()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(console, terminal)],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("indexer").setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_render_exc_info),
        bounded,
    ]


def _renderers(console: bool, terminal: bool) -> list[Processor]:
    if console:
        colors = terminal and "NO_COLOR" not in os.environ
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.JSONRenderer(sort_keys=True)]


def first_line(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Cut a library's message at its first line: asyncio puts the repr of an exception on the second."""
    event["event"] = str(event["event"]).partition("\n")[0]
    return event


def bounded(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Replace every value by one that is fit to be logged: see :func:`fit`. Tracebacks keep their lines."""
    for key, value in event.items():
        if key not in ("exception", "_record"):
            event[key] = fit(value)
    return event


def fit(value: object) -> object:
    """Return numbers as they are, text cut and without control characters, of anything else only what it is."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, list | tuple):
        rest = [f"… {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else []
        return [fit(item) for item in value[:MAX_ITEMS]] + rest
    return f"<{type(value).__name__}>"


def printable(text: str) -> str:
    """Return ``text`` cut to ``MAX_TEXT`` characters, its control characters as escapes: no terminal obeys them."""
    cut = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), cut)


def report_faults(stream: TextIO) -> None:
    """Write what nobody handles (in a thread, in a destructor, anywhere) to ``stream``, as :func:`render_exception`.

    Python's own reports hold the exception's message and the repr of what it happened in. For the whole process.
    """

    def write(error: BaseException | None) -> None:
        if error is not None:
            stream.write(render_exception(error) + "\n")

    sys.excepthook = lambda _, error, __: write(error)
    sys.unraisablehook = lambda fault: write(fault.exc_value)
    threading.excepthook = lambda fault: write(fault.exc_value)


def report_forgotten(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler: what nobody retrieved is logged, but for a look-up that nobody waits for.

    uvloop leaves the look-up of a host's name to itself where an attempt to connect is cancelled, as a stop may do.
    """
    future = context.get("future")
    abandoned = isinstance(future, asyncio.Future) and not isinstance(future, asyncio.Task)
    if not (abandoned and isinstance(context.get("exception"), socket.gaierror)):
        loop.default_exception_handler(context)


def _render_exc_info(exc_info: ExcInfo) -> str:
    return render_exception(exc_info[1])


def render_exception(error: BaseException) -> str:
    """Return a traceback with causes and grouped errors, without local variables or messages that may quote input."""
    return "\n".join(_exception_lines(error, set(), ""))


def _exception_lines(error: BaseException, seen: set[int], indent: str) -> Iterator[str]:
    if id(error) in seen:
        return
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _exception_lines(cause, seen, indent)
        yield f"{indent}which led to:"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"{indent}  {frame.filename}:{frame.lineno} in {frame.name}"
    message = printable(str(error)) if isinstance(error, _OPEN) else "(message withheld: it may quote input)"
    yield f"{indent}{type(error).__qualname__}: {message}"
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _exception_lines(part, seen, indent + "  | ")


class OncePer:
    """Lets a message through once in a while: a flood from outside must not become a flood in the log.

        if (repeats := often.allows("bad_signature")) is not None:
            log.warning("commit set aside", reason="bad_signature", repeats=repeats)

    ``clock`` returns seconds (any start). Keys should be words of our own; at most ``MAX_KEYS`` are remembered, and
    while that many are recent all others share one.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: dict[Hashable, float] = {}
        self._kept_back: dict[Hashable, int] = {}

    def allows(self, key: Hashable) -> int | None:
        """Return how many were kept back since the last one let through, or None if this one is kept back too."""
        now = self._clock()
        if key not in self._last and len(self._last) >= MAX_KEYS:
            key = self._make_room(key, now)
        if now - self._last.get(key, float("-inf")) < self._seconds:
            self._kept_back[key] = self._kept_back.get(key, 0) + 1
            return None
        self._last[key] = now
        return self._kept_back.pop(key, 0)

    def _make_room(self, key: Hashable, now: float) -> Hashable:
        self._last = {old: when for old, when in self._last.items() if now - when < self._seconds}
        self._kept_back = {old: count for old, count in self._kept_back.items() if old in self._last}
        return key if len(self._last) < MAX_KEYS else _SHARED_KEY
