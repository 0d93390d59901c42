"""The accounts whose permissioned spaces are followed: their passwords, and a follower for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from indexer.config import Settings
from indexer.errors import SettingsError
from indexer.identity import Resolver
from indexer.keys import PublicKey
from indexer.outbound import Outbound
from indexer.pipeline import Pipeline
from indexer.space_follow import SpaceFollower
from indexer.spaces.account import author_key, open_account
from indexer.spaces.client import SpaceClient
from indexer.spaces.session import Secret
from indexer.store import Store
from indexer.syntax import parse_space_uri

Report = Callable[[str, str, str | None], None]  # account, state, sentence


@asynccontextmanager
async def opened_spaces(
    settings: Settings, store: Store, pipeline: Pipeline, report: Report
) -> AsyncIterator[dict[str, SpaceFollower]]:
    """A follower for each account of the settings; their connections are closed at the end. Raises SettingsError."""
    passwords = read_passwords(settings)
    outbound = Outbound(allow_private_hosts=settings.allow_private_hosts)
    resolver = Resolver(outbound, settings.plc_url)

    def follower(account: str) -> SpaceFollower:
        async def open_client() -> SpaceClient:
            return await open_account(outbound, resolver, account, passwords[account])

        async def keys(did: str, fresh: bool) -> PublicKey:
            return await author_key(resolver, did, fresh=fresh)

        return SpaceFollower(
            account,
            open_client,
            keys,
            store,
            pipeline,
            wanted=lambda space: is_wanted(space, settings.spaces),
            report=lambda state, detail: report(account, state, detail),
            once=settings.once,
        )

    try:
        yield {account: follower(account) for account in settings.space_account}
    finally:
        await outbound.aclose()


def read_passwords(settings: Settings) -> dict[str, Secret]:
    """The app password of each account, from the environment or the file. Raises SettingsError, without quoting any."""
    accounts = settings.space_account
    if settings.space_password is not None:
        lines = [settings.space_password.get_secret_value()]
    elif settings.space_password_file is not None:
        try:
            lines = settings.space_password_file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise SettingsError(f"--space-password-file: cannot read {settings.space_password_file}") from None
    else:
        raise SettingsError(
            "--space-account: an app password is needed, in --space-password-file or LETTA_INDEXER_SPACE_PASSWORD"
        )
    words = [line.split() for line in lines if line.strip()]
    if len(accounts) == 1 and len(words) == 1 and len(words[0]) == 1:
        return {accounts[0]: Secret(words[0][0])}
    named = {line[0]: Secret(line[1]) for line in words if len(line) == 2}
    missing = [account for account in accounts if account not in named]
    if missing:
        raise SettingsError(f"--space-password-file: no line `ACCOUNT PASSWORD` for {', '.join(missing)}")
    return {account: named[account] for account in accounts}


def is_wanted(space: str, wanted: tuple[str, ...]) -> bool:
    """Whether a space is among those wanted, by its type or its URI in either spelling; all are, if none is named."""
    if not wanted:
        return True
    kind = space.split("/")[4] if space.count("/") >= 5 else ""
    return any(name == kind or (parse_space_uri(name) or name) == space for name in wanted)
