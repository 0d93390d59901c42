"""Installing the reference PDS: done once, skipped only where a tool is missing, and loud where it fails."""

from __future__ import annotations

import importlib.util
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pds import install, process
from tests.pds.install import InstallError, Tools
from tests.pds.process import PdsProcess, StartError, launched

GOOD_NPM = "mkdir node_modules && echo run >> ../runs"
BAD_NPM = "mkdir node_modules && echo no such package && exit 1"


def tools_with(folder: Path, *, npm: str = GOOD_NPM, node: str = "echo v22.0.0") -> Tools:
    """Tools that are shell scripts."""
    for name, script in (("npm", npm), ("node", node)):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return Tools(str(folder / "node"), (str(folder / "npm"),))


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Node.js: a folder that is the whole of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return folder


@pytest.mark.usefixtures("bare_machine")
def test_missing_tools_skip_and_say_what_is_needed() -> None:
    """Where Node.js isn't there, nothing ran, and the report says so and what to install."""
    with pytest.raises(pytest.skip.Exception, match=r"not run: needs Node\.js 22\+ with npm"), PdsProcess.start():
        pytest.fail("nothing can have started")
    assert install.main() == 3


@pytest.mark.parametrize(("version", "found"), [("v22.0.0", True), ("v24.1.0", True), ("v20.19.0", False), ("", False)])
def test_node_of_path_counts_if_new_enough(bare_machine: Path, version: str, found: bool) -> None:
    """An old Node.js, on which the database module crashes, is no Node.js."""
    tools = tools_with(bare_machine, node=f"echo {version}")
    assert install.find_tools() == (tools if found else None)


def test_second_call_installs_nothing(tmp_path: Path) -> None:
    """The packages are fetched once for all test runs to come."""
    tools = tools_with(tmp_path)
    folder = install.install(tools, tmp_path / "cache")
    assert (folder / "node_modules").is_dir()
    assert install.install(tools, tmp_path / "cache") == folder
    assert (tmp_path / "cache" / "runs").read_text() == "run\n"


def test_other_versions_go_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed package.json is never answered with what an older one installed."""
    tools = tools_with(tmp_path)
    before = install.install(tools, tmp_path / "cache")
    changed = tmp_path / "package.json"
    changed.write_text("{}")
    monkeypatch.setattr(install, "MANIFEST", (changed,))
    assert install.install(tools, tmp_path / "cache") != before


def test_runs_at_one_time_install_once(tmp_path: Path) -> None:
    """Of several test runs that begin together one installs, and the others wait for it."""
    tools = tools_with(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: install.install(tools, tmp_path / "cache"), range(4)))
    assert len(folders) == 1
    assert (tmp_path / "cache" / "runs").read_text() == "run\n"


def test_failed_install_is_loud_and_leaves_nothing(tmp_path: Path) -> None:
    """A failure shows npm's own words, and the next call starts afresh instead of taking half for whole."""
    with pytest.raises(InstallError, match="no such package"):
        install.install(tools_with(tmp_path, npm=BAD_NPM), tmp_path / "cache")
    folder = install.install(tools_with(tmp_path), tmp_path / "cache")
    assert (folder / "node_modules").is_dir()


def test_failed_start_is_loud(tmp_path: Path) -> None:
    """A server that doesn't come up fails the test with what it printed."""
    tools = tools_with(tmp_path, node="echo cannot find module >&2; exit 7")
    with pytest.raises(StartError, match=r"(?s)ended with 7.*cannot find module"), launched(tools, tmp_path):
        pytest.fail("nothing can have started")


def test_stuck_start_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never gets ready doesn't hold the test run up for ever."""
    monkeypatch.setattr(process, "START_TIMEOUT", 0.1)
    tools = tools_with(tmp_path, node="exec cat")
    with pytest.raises(StartError, match="ended with -9"), launched(tools, tmp_path):
        pytest.fail("nothing can have started")


def test_cache_of_the_user_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages lie outside the source tree where the user has a cache, else in a git-ignored folder of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert install.cache_folder() == tmp_path / "letta-indexer-tests"
    shutil.rmtree(tmp_path)
    tmp_path.touch()
    assert ".pytest_cache" in install.cache_folder().parts
