"""The programs that read what deploy/ holds, as Debian packages them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.readme import ROOT

DEPLOY: Final = ROOT / "deploy"
# Beyond the path of a user who isn't root; what .ci/run installs.
_PLACES: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES: Final = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "systemd-analyze": "systemd",
    "docker-compose": "docker-compose",
    "curl": "curl",
}


def program(name: str) -> str:
    """The path of a program; the test is skipped (in CI: fails) where it is missing."""
    found = shutil.which(name) or shutil.which(name, path=_PLACES)
    if found is None:
        pytest.skip(f"not run: needs {name} (apt-get install {_PACKAGES[name]})")
    return found


def run(*command: str | Path, cwd: Path | None = None) -> tuple[int, str]:
    """Run a program to its end: its exit code, and all that it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout
