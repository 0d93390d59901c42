"""The simulator shares nothing with what it tests."""

from __future__ import annotations

import ast
from pathlib import Path

import indexer.simulator

PACKAGE = Path(indexer.simulator.__file__).parent
ALLOWED = {"coincurve", "cryptography", "websockets", "aiohttp"}
CODE_UNDER_TEST = {"libipld", "cbor2", "atproto", "asyncpg"}


def imported(path: Path) -> set[str]:
    """The dotted names a module imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_simulator_imports_no_module_of_the_indexer_but_its_own() -> None:
    """An oracle that shares code with what it judges agrees with its mistakes."""
    modules = sorted(PACKAGE.glob("**/*.py"))
    found = {(path.name, name) for path in modules for name in imported(path) if name.split(".")[0] == "indexer"}
    assert len(modules) > 10
    assert [pair for pair in found if not pair[1].startswith("indexer.simulator.")] == []


def test_the_simulator_decodes_with_no_library_the_indexer_decodes_with() -> None:
    """Encoding and decoding are its own: only cryptography and sockets come from outside."""
    names = {name.split(".")[0] for path in PACKAGE.glob("**/*.py") for name in imported(path)}
    assert names & CODE_UNDER_TEST == set()
    assert names >= ALLOWED - {"aiohttp"}
