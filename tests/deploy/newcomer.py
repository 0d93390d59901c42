"""README.md, Deploy, in the hands of somebody who has nothing but a Debian machine and does what is written there."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.debian import DebianPostgres
from tests.readme import ROOT, page

_SECTION = re.compile(r"^### On a Debian machine\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What can't be done here: install packages and talk to systemd, which isn't running. Both are noted instead.
_STAND_INS = """
set -euo pipefail
apt-get() { echo "apt-get $*" >>"$ROOT/done"; }
systemctl() { echo "systemctl $*" >>"$ROOT/done"; }
runuser() { shift 3; env PATH="$POSTGRES:$PATH" PGHOST="$SOCKETS" PGUSER=postgres "$@"; }
python3() { "$PYTHON" "$@"; }
"""


def blocks() -> list[str]:
    """The commands of the section, block by block; the last one only looks at what the others made."""
    section = _SECTION.search(page("README.md"))
    assert section is not None
    return _BLOCK.findall(section[1])


def status_command() -> str:
    """The command that the section names for looking at the daemon's state."""
    named = re.search(r"`(/opt/\S+ status .*?)`", page("README.md"))
    assert named is not None
    return named[1]


@dataclass(frozen=True, slots=True)
class Machine:
    """A folder in the place of ``/``, and a PostgreSQL in the place of that which apt-get would have started."""

    root: Path
    postgres: DebianPostgres

    def prepare(self) -> None:
        """What Debian's packages bring along."""
        for folder in ("etc/systemd/system", "etc/prometheus", "opt"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "etc/prometheus/prometheus.yml").write_text("# Debian's example\n", encoding="ascii")

    def follow(self, commands: list[str], environment: dict[str, str]) -> str:
        """Give these commands to a shell, word by word, but for the folders /etc and /opt; what it printed."""
        text = re.sub(
            r"(?<=[ \"'])/(?=(?:etc|opt)/)|^/(?=opt/)", f"{self.root}/", "\n".join(commands), flags=re.MULTILINE
        )
        done = subprocess.run(
            ["/bin/bash", "-c", _STAND_INS + text],
            cwd=ROOT,
            env=environment
            | {
                "ROOT": str(self.root),
                "POSTGRES": str(self.postgres.programs),
                "SOCKETS": str(self.postgres.folder),
                "PGPORT": str(self.postgres.port),
                "PYTHON": getattr(sys, "_base_executable", sys.executable),
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def noted(self) -> list[str]:
        """What was asked of apt-get and systemctl, in order."""
        return (self.root / "done").read_text(encoding="utf-8").splitlines()
