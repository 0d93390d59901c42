"""What the commands of ``db`` do. PostgreSQL's own programs learn where the database is from their environment alone,
which other users of the machine don't see, and neither does a list of processes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import BinaryIO

from indexer.config import Settings
from indexer.daemon import opened_store
from indexer.embedded import EmbeddedPostgres, binaries, client_program
from indexer.errors import SchemaError, SettingsError
from indexer.store.backups import SCHEMAS, VERSIONS, Backups, refuse_unusable
from indexer.store.dsn import connection_variables
from indexer.store.migrations import migrate as migrate_schema

# Becomes one of PostgreSQL's programs, which the kernel (of Linux) then ends with us, also if we are killed; not at all
# if we are gone already. What Python ignores is not to be ignored by the program.
_BOUND = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


async def initialize(settings: Settings) -> bool:
    """Create the schema, also beside other tables; False where it is there."""
    async with opened_store(settings, makes=True) as store:
        return await store.initialize()


async def migrate(settings: Settings) -> list[int]:
    """Lead an older schema to this program's version; the versions it went through."""
    async with opened_store(settings, makes=False) as store, store.unchecked_connection() as connection:
        return await migrate_schema(connection)


async def dump(settings: Settings, file: Path) -> None:
    """Write a dump to a new file that nobody else may read: whole, or none. Raises SettingsError, SchemaError."""
    with _made_whole(file) as output:
        async with _running_database(settings, makes=False) as dsn:
            program = client_program("pg_dump", await Backups(dsn).begin_dump())
            schemas = [f"--schema={schema}" for schema in SCHEMAS]
            await _run(program, "--format=custom", "--no-password", *schemas, dsn=dsn, output=output)


@contextmanager
def _made_whole(file: Path) -> Iterator[BinaryIO]:
    """A new file to write, that has its name once it is whole and on disk, and is gone if that fails."""
    if file.exists():
        raise SettingsError(f"{file} exists already: name a new file")
    try:  # under a name of its own: what an earlier run left may still be written to by the program it started
        number, name = tempfile.mkstemp(prefix=f"{file.name}.", suffix=".part", dir=file.parent)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from None
    part = Path(name)
    try:
        with os.fdopen(number, "wb") as output:
            yield output
            os.fsync(output.fileno())
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)


async def restore(settings: Settings, file: Path) -> int | None:
    """Bring a dump back, in one transaction, into an empty database; the version of its schema if that is an older one.

    Raises SettingsError, and SchemaError: of a newer schema before anything is restored.
    """
    with _opened(file) as source:
        async with _running_database(settings, makes=True) as dsn:
            backups = Backups(dsn)
            async with backups.restoring() as major:
                program = client_program("pg_restore", major)
                refuse_unusable(await _run(program, *VERSIONS, "--file=-", dsn=dsn, source=source))
                source.seek(0)
                options = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-password", "--dbname=")
                await _run(program, *options, dsn=dsn, source=source)
            return await backups.end_restore()


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from None


async def _run(
    program: Path, *arguments: str, dsn: str, source: BinaryIO | None = None, output: BinaryIO | None = None
) -> str:
    """Run one of PostgreSQL's programs to its end; what it says, unless that goes to ``output``.

    Raises SchemaError with the first thing it complains of. That is a sentence about an object; what may follow it
    (statements, data) is left out.
    """
    process = await asyncio.create_subprocess_exec(
        *_bound(program, *arguments),
        env={**os.environ, **connection_variables(dsn)},
        stdin=source or DEVNULL,
        stdout=output or PIPE,
        stderr=PIPE,
    )
    try:
        said, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if process.returncode != 0:
        complaints = [line for line in errors.decode(errors="replace").splitlines() if "error:" in line]
        raise SchemaError(complaints[0] if complaints else f"{program.name} ended with {process.returncode}")
    return (said or b"").decode(errors="replace")


def _bound(program: str | Path, *arguments: str) -> list[str]:
    """The command that runs a program for as long as we live at the most."""
    return [sys.executable, "-ISc", _BOUND, str(os.getpid()), str(program), *arguments]


async def url_of(settings: Settings) -> str:
    """The URL of the database; an embedded one is started if it does not run."""
    async with _running_database(settings, makes=False) as dsn:
        return dsn


async def psql(settings: Settings, arguments: list[str]) -> int:
    """Run psql to its end. The URL goes in by the environment, where other users don't see it."""
    program = shutil.which("psql") or str(binaries() / "psql")
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)  # ctrl-C is for psql alone
    async with _running_database(settings, makes=False) as dsn:
        variables = {**os.environ, **connection_variables(dsn)}
        process = await asyncio.create_subprocess_exec(*_bound(program, *arguments), env=variables)
        return await process.wait()


@asynccontextmanager
async def _running_database(settings: Settings, *, makes: bool) -> AsyncIterator[str]:
    """The URL of the database, embedded or not; the embedded server runs at least as long as the block.

    ``makes``: its data is made if there is none.
    """
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    embedded = EmbeddedPostgres(settings.data_dir, makes=makes)
    try:
        yield await embedded.start()
    finally:
        await embedded.stop()
