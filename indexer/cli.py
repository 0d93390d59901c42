"""The commands: arguments in, words and exit codes out.

Exit codes: 0 done; 1 something is stale, different or failed, as the command says; 2 usage or settings; 3 database
or schema.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import structlog
import typer
import uvloop

from indexer import __version__, cli_database, cli_repos, logs
from indexer.backfill import backfill_repos
from indexer.config import Settings, load_settings
from indexer.daemon import Daemon, on_signals, open_source, opened_store, run_daemon
from indexer.demo import Demo, questions_to, simulated_network
from indexer.embedded import EmbeddedPostgres
from indexer.errors import DatabaseError, EmbeddedError, IndexerError, SettingsError, SourceBroken
from indexer.flags import with_settings
from indexer.sources.base import State, Status
from indexer.sources.file import CaptureFile
from indexer.sources.file import capture as write_capture
from indexer.sources.follow import Follower
from indexer.sources.jetstream import JetstreamSource
from indexer.store import Summary
from indexer.store.reports import to_json
from indexer.tables import stale_lines, table_lines

DONE, FOUND, USAGE, DATABASE = 0, 1, 2, 3
DEMO_PAUSE = 2.0  # seconds to read each scene on a terminal
DATABASE_SETTINGS = ("database_url", "data_dir", "log_level", "log_format")

_log = structlog.stdlib.get_logger("indexer.cli")

T = TypeVar("T")
DumpFile = Annotated[Path, typer.Argument(help="The file of the backup")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables")]

app = typer.Typer(
    name="letta-indexer",
    help="A live SQL index of Letta agents on the AT Protocol, with every stale compiled prompt flagged and explained.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
database = typer.Typer(help="The database: create it, open it, migrate it, back it up.", no_args_is_help=True)
app.add_typer(database, name="db")


def main() -> None:
    """Run the command line and exit with its code; errors of ours are one sentence on standard error.

    Of a fault nobody foresaw the place is shown, and its message only where that can't quote a record or a secret.
    """
    logs.report_faults(sys.stderr)
    try:
        app()
    except IndexerError as error:
        sys.stderr.write(f"letta-indexer: {error}\n")
        sys.exit(exit_code(error))
    except Exception as error:
        sys.stderr.write(logs.render_exception(error) + "\n")
        sys.exit(FOUND)


def exit_code(error: IndexerError) -> int:
    """The exit code that an error stands for."""
    if isinstance(error, SettingsError):
        return USAGE
    return DATABASE if isinstance(error, DatabaseError | EmbeddedError) else FOUND


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end on uvloop."""

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(logs.report_forgotten)
        return await coroutine

    return uvloop.run(watched())


def say(text: str) -> None:
    """One line for people, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"letta-indexer {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end")
    ] = False,
) -> None:
    """A live SQL index of Letta agents on the AT Protocol."""


@app.command()
@with_settings()
def run(settings: Settings) -> None:
    """Follow the sources and keep the index. Without --database-url on an embedded PostgreSQL."""
    _configure(settings)
    failed = run_async(run_daemon(settings, announce=say))
    if settings.once and failed:
        raise typer.Exit(FOUND)


@app.command()
@with_settings(*DATABASE_SETTINGS)
def status(settings: Settings, json: AsJson = False) -> None:
    """Sources and their lag, repositories, records, prompts by freshness, what was set aside."""
    _configure(settings)
    summary = run_async(_summary(settings))
    if json:
        say(summary.as_json())
    else:
        _print_summary(summary)


async def _summary(settings: Settings) -> Summary:
    async with opened_store(settings, makes=False) as store:
        return await store.summary()


def _print_summary(summary: Summary) -> None:
    for title, rows in (
        ("Sources", summary.sources),
        ("Repositories", summary.repos),
        ("Records", summary.records),
        ("Compiled prompts", summary.prompts),
        ("Set aside", summary.dead_letters),
        ("Integrity issues", summary.issues),
    ):
        say("\n".join([f"== {title}", "", *table_lines(rows), ""]))


@app.command()
@with_settings(*DATABASE_SETTINGS)
def stale(
    settings: Settings,
    json: AsJson = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 if any prompt is stale")] = False,
) -> None:
    """List the stale prompts: what changed, since when, and which record says so."""
    _configure(settings)
    rows = run_async(_stale(settings))
    if json:
        say(to_json(rows))
    elif rows:
        say("\n\n".join("\n".join(stale_lines(row)) for row in rows))
    else:
        say("no stale prompts")
    if exit_code and rows:
        raise typer.Exit(FOUND)


async def _stale(settings: Settings) -> list[dict[str, Any]]:
    async with opened_store(settings, makes=False) as store:
        return await store.stale()


@app.command()
def demo(
    spaces: Annotated[bool, typer.Option("--spaces", help="Also show an agent in a permissioned space")] = False,
) -> None:
    """Show what it does: a simulated network on loopback, indexed live. Needs no network, leaves nothing behind."""
    logs.configure("error", "auto", sys.stderr)
    with suppress(KeyboardInterrupt):  # ctrl-C is a way to end it
        run_async(_demo(spaces))


async def _demo(spaces: bool) -> None:
    embedded = EmbeddedPostgres(None, temporary=True, fast_for_tests=True)  # what is thrown away needs no syncing
    try:
        dsn = await embedded.start()
        async with simulated_network(spaces=spaces) as network:
            # Nothing of the user's own settings: no environment, no file, and a data folder that isn't used.
            settings = load_settings({**network.settings, "database_url": dsn, "data_dir": "."}, {}, None)
            async with opened_store(settings, makes=True) as store:
                await store.open()
                daemon = Daemon(settings, store, announce=lambda _: None)
                pause = DEMO_PAUSE if sys.stdout.isatty() else 0.0
                await Demo(network, daemon, ask=questions_to(store), say=say, pause=pause).run()
    finally:
        await embedded.stop()


@app.command()
@with_settings("source", "relay_url", "cursor", "idle_timeout", "log_level", "log_format")
def capture(
    settings: Settings,
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist")],
    limit: Annotated[int | None, typer.Option(min=1, help="End after this many frames")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after this many seconds")] = None,
) -> None:
    """Record the frames of one source to a file that `--source file:PATH` replays."""
    _configure(settings)
    if len(settings.sources) != 1:
        raise SettingsError("--source: capture records one source at a time")
    count = run_async(_capture(settings, file, limit, seconds))
    say(f"{count} frames in {file}")


async def _capture(settings: Settings, file: Path, limit: int | None, seconds: float | None) -> int:
    """How many frames were written. Raises SourceBroken, and leaves no file, where the source was never reached."""
    source = await open_source(settings.sources[0], settings)
    if isinstance(source, JetstreamSource):
        raise SettingsError("--source: a capture is of a firehose; what a Jetstream sends could not be replayed")
    reach = Reach(f"{source.label}: no connection in time")
    with CaptureFile(file) as recording:
        follower = Follower(source, resume_from=lambda: settings.cursor.get(source.key), on_status=reach.note)
        task = asyncio.current_task()
        assert task is not None
        on_signals(task.cancel)
        with suppress(asyncio.CancelledError):  # what was written is whole
            async with aclosing(follower.items()) as items:
                await write_capture(items, recording, limit=limit, seconds=seconds)
        if reach.obstacle:
            raise SourceBroken(f"nothing to capture, the source was never reached: {reach.obstacle}")
        return recording.count


class Reach:
    """Whether a source was ever reached: ``obstacle`` says what was in the way, '' once it was."""

    def __init__(self, obstacle: str) -> None:
        self.obstacle = obstacle
        self._reached = False

    def note(self, status: Status) -> None:
        """Take a change of the source's state; whoever waits for frames is told of a lost connection."""
        self._reached |= status.state is State.LIVE
        if status.state is State.WAITING:
            _log.warning("source lost", reason=status.reason, retry_in=status.retry_in, detail=status.detail)
        self.obstacle = "" if self._reached else status.detail or self.obstacle


@app.command()
@with_settings()
def backfill(settings: Settings, dids: cli_repos.Dids = None) -> None:
    """Fetch these repositories, or all that the relay knows of, and end when they are in."""
    _configure(settings)
    if run_async(backfill_repos(settings, dids or [])):
        raise typer.Exit(FOUND)


@app.command()
@with_settings(*DATABASE_SETTINGS, "collections", "plc_url", "allow_private_hosts")
def check(
    settings: Settings,
    json: AsJson = False,
    remote: Annotated[bool, typer.Option("--remote", help="Also compare with what the accounts' hosts sign")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Want the repositories that differ; `run` fetches them")
    ] = False,
) -> None:
    """Audit the index: rows hash to their CIDs, flags are what the records say. Ends with 1 if anything differs.

    So it does where a host could not be asked.
    """
    _configure(settings)
    found = run_async(cli_repos.audit(settings, remote=remote, repair=repair))
    cli_repos.show_differences(found, as_json=json)
    if found:
        raise typer.Exit(FOUND)


@app.command()
@with_settings(*DATABASE_SETTINGS)
def forget(settings: Settings, did: Annotated[str, typer.Argument(metavar="DID_OR_SPACE")]) -> None:
    """Take everything of an account or a space away for good; it is not indexed again."""
    _configure(settings)
    run_async(cli_repos.forget(settings, did))
    say(f"forgotten: {did}")


@database.command("init")
@with_settings(*DATABASE_SETTINGS)
def initialize(settings: Settings) -> None:
    """Create the schema, also beside other tables. Does nothing where it is there."""
    _configure(settings)
    say("schema created" if run_async(cli_database.initialize(settings)) else "the schema is there already")


@database.command()
@with_settings(*DATABASE_SETTINGS)
def migrate(settings: Settings) -> None:
    """Lead the schema of an older release to this one's; `run` does it by itself on an embedded database."""
    _configure(settings)
    versions = run_async(cli_database.migrate(settings))
    say(f"migrated to schema version {versions[-1]}" if versions else "the schema is this release's already")


@database.command()
@with_settings(*DATABASE_SETTINGS)
def dump(settings: Settings, file: DumpFile) -> None:
    """Write a backup of the whole index to a new file, while `run` works or not."""
    _configure(settings)
    run_async(cli_database.dump(settings, file))
    say(f"dumped to {file}")


@database.command()
@with_settings(*DATABASE_SETTINGS)
def restore(settings: Settings, file: DumpFile) -> None:
    """Bring a backup back, into an empty database; `run` goes on from where it was. Restore only what you trust."""
    _configure(settings)
    older = run_async(cli_database.restore(settings, file))
    say(f"restored from {file}")
    if older is not None:
        say(f"its schema is of version {older}: run `letta-indexer db migrate` next")


@database.command()
@with_settings(*DATABASE_SETTINGS)
def url(settings: Settings) -> None:
    """Print the database's URL (it may hold a password). That of an embedded one works while `run` does."""
    _configure(settings)
    say(run_async(cli_database.url_of(settings)))


@database.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@with_settings(*DATABASE_SETTINGS)
def psql(
    settings: Settings, arguments: Annotated[list[str] | None, typer.Argument(help="Passed to psql")] = None
) -> None:
    """Open psql on the database; arguments after -- are psql's own."""
    _configure(settings)
    raise typer.Exit(run_async(cli_database.psql(settings, arguments or [])))


def _configure(settings: Settings) -> None:
    logs.configure(settings.log_level, settings.log_format, sys.stderr)
