"""What the server is told: its command line, and the files in its data folder. Text in, text out."""

from __future__ import annotations

from urllib.parse import quote

USER = "letta_indexer"
DATABASE = "letta_indexer"
PORT = 5432  # no network port: part of the socket's name

# Read by postgres from postgresql.conf, which is ours to write once and the user's to tune afterwards.
_CONF = """\
# Written by letta-indexer when this folder was made; yours to change. Addresses, sockets and the log are fixed.
max_connections = 50
shared_buffers = 128MB
effective_cache_size = 512MB
maintenance_work_mem = 64MB
max_wal_size = 1GB
checkpoint_timeout = 15min
wal_compression = on
fsync = on
full_page_writes = on
synchronous_commit = on
random_page_cost = 1.1
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
lc_messages = 'C'
default_text_search_config = 'pg_catalog.simple'
# Errors of a statement are the client's to report, and could quote a record: the log is about the server.
log_min_messages = log
log_min_error_statement = panic
log_error_verbosity = terse
log_checkpoints = off
"""

_FAST = (
    "fsync=off",
    "full_page_writes=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "checkpoint_timeout=1h",
    "max_connections=100",
)


def conf(*, lz4: bool) -> str:
    """Return the text of ``postgresql.conf``; ``lz4``: whether this build can compress with it."""
    return _CONF + ("default_toast_compression = lz4\n" if lz4 else "")


def hba() -> str:
    """Return the text of ``pg_hba.conf``: the operating system says who connects; nobody is trusted unasked."""
    return f"# Written by letta-indexer at every start.\nlocal all all peer map={USER}\n"


def ident(names: set[str]) -> str:
    """Return the text of ``pg_ident.conf``: which operating-system users (``names``) may be our database user."""
    lines = [f'{USER} "{name}" {USER}\n' for name in sorted(names)]
    return "# Written by letta-indexer at every start.\n" + "".join(lines)


def initdb_options(major: int, *, fast: bool) -> list[str]:
    """Return initdb's options: UTF-8, bytewise order, checksums; ``fast`` leaves out the syncing to disk."""
    # The built-in C.UTF-8 (17 and later) doesn't depend on what locales the system has, nor change with them.
    builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    options = [f"--username={USER}", "--encoding=UTF8", "--data-checksums", "--no-instructions"]
    options += ["--auth-local=peer", "--auth-host=reject"]
    options += builtin if major >= 17 else ["--locale=C.UTF-8"]
    return options + (["--no-sync"] if fast else [])


def server_options(socket_dir: str, *, fast: bool) -> list[str]:
    """Return the part of postgres's command line that no file may override."""
    settings = [
        "listen_addresses=",
        f"unix_socket_directories={socket_dir}",
        "unix_socket_permissions=0700",
        f"port={PORT}",
        "logging_collector=off",
        "log_destination=stderr",
        *(_FAST if fast else ()),
    ]
    return [word for setting in settings for word in ("-c", setting)]


def url(socket_dir: str, database: str = DATABASE) -> str:
    """Return the URL by which asyncpg and libpq reach ``database`` through the socket in ``socket_dir``."""
    return f"postgresql://{USER}@/{database}?host={quote(socket_dir)}&port={PORT}"
