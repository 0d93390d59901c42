"""Servers and folders for the tests of the embedded PostgreSQL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from indexer.embedded import EmbeddedPostgres
from tests.embedded.servers import Make, new_server


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder for all tests that leave one as whole as they found it: to make one takes a second."""
    return tmp_path_factory.mktemp("shared") / "data"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A new folder that every user can walk into (pytest's own are closed to all but one)."""
    folder = Path(tempfile.mkdtemp(prefix="test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def make(open_folder: Path) -> AsyncIterator[Make]:
    """Make servers, and stop them at the end of the test (before their folder is removed)."""
    made: list[EmbeddedPostgres] = []

    def server(data_dir: Path | None) -> EmbeddedPostgres:
        made.append(new_server(data_dir))
        return made[-1]

    yield server
    for each in made:
        await each.stop()
