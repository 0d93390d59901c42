"""What a ``--source`` may say: the address of a firehose or of a Jetstream, or a capture file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from indexer.errors import SettingsError

FIREHOSE_PATH = "/xrpc/com.atproto.sync.subscribeRepos"
JETSTREAM_PATHS: Final = {1: "/subscribe", 2: "/xrpc/network.bsky.jetstream.subscribeEvents"}
_DICTIONARY_PATH = "/xrpc/network.bsky.jetstream.getZstdDictionary"
_PORTS = {"wss": 443, "ws": 80}
_JETSTREAM = "jetstream+"
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


Version: TypeAlias = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class JetstreamAddress:
    """A Jetstream: ``origin`` is ``wss://host[:port]`` (it may hold a password, so it is never shown).

    ``key`` is to show and store. ``version`` is that of the protocol; None: 2 where the host knows it, else 1.
    """

    origin: str = field(repr=False)
    key: str
    version: Version | None = None

    def subscription(self, version: Version, parameters: list[tuple[str, str]]) -> str:
        """The URL to connect to."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        return self.origin + JETSTREAM_PATHS[version] + query

    @property
    def dictionary_url(self) -> str:
        """Where version 2 gives out the dictionary that its frames are compressed with."""
        return "http" + self.origin.removeprefix("ws") + _DICTIONARY_PATH


@dataclass(frozen=True, slots=True)
class FileAddress:
    """A capture file."""

    path: Path


SourceAddress: TypeAlias = FirehoseAddress | JetstreamAddress | FileAddress


def parse_source_url(text: str) -> SourceAddress:
    """Read ``wss://host[:port][/path]``, ``ws://…``, ``jetstream+wss://host[:port][?v=1]`` or ``file:PATH``.

    Raises:
        SettingsError: it is none of these; the message shows ``text`` without credentials and query.
    """
    scheme, colon, rest = text.partition(":")
    scheme = scheme.lower()
    if colon and scheme == "file":
        return _file(text, rest)
    if scheme.removeprefix(_JETSTREAM) not in _PORTS or not rest.startswith("//"):
        raise _refused(text, "expected wss://HOST, jetstream+wss://HOST or file:PATH")
    return _jetstream(text) if scheme.startswith(_JETSTREAM) else _firehose(text)


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


def _host(text: str, url: str) -> tuple[SplitResult, str]:
    """The parts of a URL, and its host in ASCII. Raises SettingsError, which shows ``text``."""
    if _UNPRINTABLE.search(text):
        raise _refused(text, "a URL holds no spaces or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError:  # a port that is no number, an unfinished bracket, a label over 63 bytes
        raise _refused(text, "not a URL") from None
    if not _HOST.fullmatch(host) or port == 0:
        raise _refused(text, "the host or port is missing or wrong")
    if parts.fragment or any(name == "cursor" for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise _refused(text, "a position is given with --cursor, not in the URL")
    return parts, host


def _firehose(text: str) -> FirehoseAddress:
    """The URL with an ASCII host and, unless it names another, the firehose's path."""
    parts, host = _host(text, text)
    path = FIREHOSE_PATH if parts.path in ("", "/") else parts.path
    query = f"?{parts.query}" if parts.query else ""
    return FirehoseAddress(_origin(parts, host) + path + query, f"firehose:{_place(parts, host)}")


def _jetstream(text: str) -> JetstreamAddress:
    """What is asked for is ours to say; the URL may only choose the version, by the path or by ``?v=``."""
    parts, host = _host(text, text[len(_JETSTREAM) :])
    named: set[Version] = {version for version, path in _versions() if path == parts.path}
    query = parse_qsl(parts.query, keep_blank_values=True)
    asked: set[Version] = {version for version, _ in _versions() if ("v", str(version)) in query}
    if len(query) != len(asked) or (parts.path not in ("", "/") and not named) or len(named | asked) > 1:
        raise _refused(text, "expected jetstream+wss://HOST, with ?v=1 or ?v=2 to choose the protocol")
    version = next(iter(named | asked), None)
    return JetstreamAddress(_origin(parts, host), f"jetstream:{_place(parts, host)}", version)


def _versions() -> tuple[tuple[Version, str], ...]:
    return (1, JETSTREAM_PATHS[1]), (2, JETSTREAM_PATHS[2])


def _origin(parts: SplitResult, host: str) -> str:
    user, at, _ = parts.netloc.rpartition("@")
    if at and ":" not in user:
        user += ":"
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{user}{at}{_bracketed(host)}{port}"


def _place(parts: SplitResult, host: str) -> str:
    """Host, and port if it isn't the usual one."""
    shown = "" if parts.port in (None, _PORTS[parts.scheme]) else f":{parts.port}"
    return _bracketed(host) + shown


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
