"""What a ``--source`` may say: the address of a firehose, or a capture file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlsplit

from indexer.errors import SettingsError

FIREHOSE_PATH = "/xrpc/com.atproto.sync.subscribeRepos"
_PORTS = {"wss": 443, "ws": 80}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\xa0]")
_HOST = re.compile(r"[a-z0-9_.-]{1,253}|[0-9a-f:.]+:[0-9a-f:.]*")


@dataclass(frozen=True, slots=True)
class FirehoseAddress:
    """A firehose: ``url`` to connect to (it may hold a password, so it is never shown), ``key`` to show and store."""

    url: str = field(repr=False)
    key: str

    def after(self, cursor: int | None) -> str:
        """The URL that asks for the events after ``cursor``: 0 is all the host keeps, None is from now on."""
        if cursor is None:
            return self.url
        return f"{self.url}{'&' if '?' in self.url else '?'}cursor={cursor}"


@dataclass(frozen=True, slots=True)
class FileAddress:
    """A capture file."""

    path: Path


SourceAddress: TypeAlias = FirehoseAddress | FileAddress


def parse_source_url(text: str) -> SourceAddress:
    """Read ``wss://host[:port][/path]``, ``ws://…`` or ``file:PATH``.

    Raises:
        SettingsError: it is none of these; the message shows ``text`` without credentials and query.
    """
    scheme, colon, rest = text.partition(":")
    scheme = scheme.lower()
    if colon and scheme == "file":
        return _file(text, rest)
    if scheme in ("jetstream+wss", "jetstream+ws"):
        raise _refused(text, "Jetstream sources are not supported yet")
    if scheme not in _PORTS or not rest.startswith("//"):
        raise _refused(text, "expected wss://HOST, ws://HOST or file:PATH")
    return _firehose(text)


def without_credentials(text: str) -> str:
    """``text`` as it may be shown: no user name, password or query."""
    prefix = _SCHEME.match(text)
    scheme = prefix.group() if prefix else ""
    rest = text[len(scheme) :].rpartition("@")[2]
    return scheme + re.split("[?#]", rest, maxsplit=1)[0]


def _refused(text: str, why: str) -> SettingsError:
    return SettingsError(f"--source {without_credentials(text)!r}: {why}")


def _file(text: str, rest: str) -> FileAddress:
    # file:///absolute is the URL's own way of writing file:/absolute; a host in it means nothing here.
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if not path or path.startswith("//") or "\0" in path:
        raise _refused(text, "expected file:PATH")
    return FileAddress(Path(path))


def _firehose(text: str) -> FirehoseAddress:
    if _UNPRINTABLE.search(text):
        raise _refused(text, "a URL holds no spaces or control characters")
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError:  # a port that is no number, an unfinished bracket, a label over 63 bytes
        raise _refused(text, "not a URL") from None
    if not _HOST.fullmatch(host) or port == 0:
        raise _refused(text, "the host or port is missing or wrong")
    if parts.fragment or any(name == "cursor" for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise _refused(text, "a position is given with --cursor, not in the URL")
    return FirehoseAddress(_normal(parts, host), _key(parts.scheme, host, port))


def _normal(parts: SplitResult, host: str) -> str:
    """The URL with an ASCII host and, unless it names another, the firehose's path."""
    user, at, _ = parts.netloc.rpartition("@")
    if at and ":" not in user:
        user += ":"
    port = "" if parts.port is None else f":{parts.port}"
    path = FIREHOSE_PATH if parts.path in ("", "/") else parts.path
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{user}{at}{_bracketed(host)}{port}{path}{query}"


def _key(scheme: str, host: str, port: int | None) -> str:
    shown = "" if port in (None, _PORTS[scheme]) else f":{port}"
    return f"firehose:{_bracketed(host)}{shown}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
