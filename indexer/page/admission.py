"""Who may see the page: whoever is on this machine, or has the token."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from pydantic import SecretStr

from indexer.config_values import Listen
from indexer.errors import SettingsError

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
CHALLENGE: Final = 'Basic realm="letta-indexer", charset="UTF-8"'

_TOKEN = re.compile(r"[!-~]{16,256}")
_TEXT = "text/plain; charset=utf-8"


def token_of(word: SecretStr | None, file: Path | None) -> SecretStr | None:
    """The token, given itself or in a file; None if neither is. Raises SettingsError, without quoting it."""
    if word is None and file is None:
        return None
    if word is None and file is not None:
        try:
            word = SecretStr(file.read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError):
            raise SettingsError(f"--page-token-file: cannot read {file}") from None
    assert word is not None
    if _TOKEN.fullmatch(word.get_secret_value()) is None:
        raise SettingsError("--page-token-file: expected a token of 16 to 256 printable characters without blanks")
    return word


class Admission:
    """Decides on each request. Without a token the page is for this machine, so it is off where others can connect.

    There the name in ``Host`` has to be a local one: else a site of a stranger's, whose name leads to 127.0.0.1, could
    have its visitors' browsers read the page to it (DNS rebinding).
    """

    def __init__(self, listen: Listen, token: SecretStr | None) -> None:
        self._local = is_local(listen.host)
        self._digest = None if token is None else _digest(token.get_secret_value().encode())

    @property
    def on(self) -> bool:
        """Whether there is a page at all."""
        return self._local or self._digest is not None

    def refusal(self, headers: Mapping[str, str]) -> web.Response | None:
        """The answer to a request that isn't let in: 401 without the token, 421 for a foreign name; None for others."""
        if self._digest is not None:
            if hmac.compare_digest(_digest(_password(headers.get(hdrs.AUTHORIZATION, ""))), self._digest):
                return None
            return _text(
                401, "the token is asked for, as the password of any user\n", {hdrs.WWW_AUTHENTICATE: CHALLENGE}
            )
        if self._local and _name(headers.get(hdrs.HOST, "")) in LOCAL_NAMES:
            return None
        return _text(421, "the page answers to localhost only\n", {})


def is_local(host: str) -> bool:
    """Whether only this machine can connect to what listens on ``host``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _name(host: str) -> str:
    """The name or address in a ``Host`` header, without port and brackets; '' for what is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _password(authorization: str) -> bytes:
    scheme, _, credentials = authorization.partition(" ")
    try:
        decoded = base64.b64decode(credentials.strip(), validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        return b""
    return decoded.partition(b":")[2]


def _digest(secret: bytes) -> bytes:
    """Of one length whatever the secret, so that comparing takes the same time."""
    return hashlib.sha256(secret).digest()


def _text(status: int, text: str, headers: Mapping[str, str]) -> web.Response:
    return web.Response(status=status, text=text, headers={hdrs.CONTENT_TYPE: _TEXT, **headers})
