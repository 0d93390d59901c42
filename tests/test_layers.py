"""The shape of the package: who may import whom, and who may touch the outside (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Every module, or package with all that is in it, and its layer. What is new has to be put here.
LAYERS = {
    "indexer.__main__": 6,
    "indexer.cli": 6,
    "indexer.cli_database": 6,
    "indexer.cli_repos": 6,
    "indexer.demo": 6,
    "indexer.demo_spaces": 6,
    "indexer.flags": 6,
    "indexer.tables": 6,
    "indexer.backfill": 5,
    "indexer.daemon": 5,
    "indexer.space_accounts": 5,
    "indexer.term": 5,
    "indexer.verification": 5,
    "indexer.accounts": 4,
    "indexer.audit": 4,
    "indexer.gauges": 4,
    "indexer.http": 4,
    "indexer.intake": 4,
    "indexer.jetstream_intake": 4,
    "indexer.lease": 4,
    "indexer.page": 4,
    "indexer.pipeline": 4,
    "indexer.reading": 4,
    "indexer.repair": 4,
    "indexer.space_follow": 4,
    "indexer.trust": 4,
    "indexer.embedded": 3,
    "indexer.identity": 3,
    "indexer.logs": 3,
    "indexer.metrics": 3,
    "indexer.outbound": 3,
    "indexer.pds": 3,
    "indexer.snapshot": 3,
    "indexer.sources": 3,
    "indexer.spaces": 3,
    "indexer.store": 3,
    "indexer.batch": 2,
    "indexer.changes": 2,
    "indexer.frames": 2,
    "indexer.jetstream_frames": 2,
    "indexer.lexicon": 2,
    "indexer.route": 2,
    "indexer.texts": 1,
    "indexer.verify": 2,
    "indexer.car": 1,
    "indexer.cbor": 1,
    "indexer.keys": 1,
    "indexer.lthash": 1,
    "indexer.mst": 1,
    "indexer.config": 0,
    "indexer.config_values": 0,
    "indexer.errors": 0,
    "indexer.model": 0,
    "indexer.syntax": 0,
    "indexer": 0,  # __init__ alone: the version
}
SIMULATOR = "indexer.simulator"  # beside the layers: the oracle must not share the code that it judges
TOP, OUTSIDE, PURE = 6, 3, 2

# Who alone may import what.
OWNERS = {
    "asyncpg": {"indexer.store"},
    "websockets": {"indexer.sources.websocket", SIMULATOR},
    "zstandard": {"indexer.sources.compression", SIMULATOR},
    "prometheus_client": {"indexer.metrics"},
    "indexer.config": {
        "indexer.backfill",
        "indexer.cli",
        "indexer.cli_database",
        "indexer.cli_repos",
        "indexer.daemon",
        "indexer.flags",
        "indexer.space_accounts",
        "indexer.term",
        "indexer.verification",
    },
}
# Parts of layer 3 know nothing of one another, but for these.
ALLIED = {
    ("indexer.store", "indexer.embedded"),
    ("indexer.identity", "indexer.outbound"),
    ("indexer.pds", "indexer.outbound"),
    ("indexer.spaces", "indexer.identity"),
    ("indexer.spaces", "indexer.outbound"),
}

IMPURE_IMPORTS = {
    "aiohttp",
    "asyncio",
    "asyncpg",
    "logging",
    "os",
    "socket",
    "structlog",
    "threading",
    "time",
    "websockets",
}
CLOCKS = {"now", "utcnow", "today"}
ASYNC_SYNTAX = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)

STARTS_TASKS = {"create_task", "ensure_future", "gather", "run_coroutine_threadsafe", "TaskGroup"}
MAY_START_TASKS = {
    "indexer.daemon": "the one place where loops are named, started, watched and stopped in order",
    "indexer.backfill": "a run of its own: repair without sources",
    "indexer.demo": "a program of its own around the daemon",
    SIMULATOR: "stands beside the daemon and has a life of its own",
}
TAKES_SIGNALS = {"add_signal_handler", "signal.signal", "sigwait", "set_wakeup_fd"}
MAY_TAKE_SIGNALS = {"indexer.daemon", "indexer.cli_database"}  # the latter leaves ctrl-C to psql


@dataclass(frozen=True, slots=True)
class Module:
    """A module by its dotted name, what it imports (dotted, everything that could be meant), and its syntax tree."""

    name: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The entry of the table that covers this module: itself, or the nearest package above it."""
        return covering(self.name, {*LAYERS, SIMULATOR}) or self.name

    @property
    def layer(self) -> int | None:
        """The module's layer; None for the simulator and for what has no place."""
        return LAYERS.get(self.part)

    def imports(self) -> Iterator[str]:
        """Dotted names of imported modules; ``from a import b`` gives ``a.b`` (which may be a name in ``a``)."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def uses(self, names: set[str]) -> Iterator[str]:
        """Those of ``names`` (``name`` or ``module.name``) that occur in the code as a name, attribute or import."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute):
                yield from {node.attr, f"{ast.unparse(node.value)}.{node.attr}"} & names
            elif isinstance(node, ast.Name):
                yield from {node.id} & names
            elif isinstance(node, ast.ImportFrom):
                yield from {
                    name for alias in node.names for name in (alias.name, f"{node.module}.{alias.name}")
                } & names


def covering(name: str, entries: set[str]) -> str | None:
    """The longest of ``entries`` that is ``name`` or a package above it; ``indexer`` stands for itself alone."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in entries and (prefix != "indexer" or name == prefix)), None)


def target(imported: str) -> str:
    """The entry of the table that an imported name belongs to; '' if it is none of ours."""
    if imported.split(".")[0] != "indexer":
        return ""
    if imported.count(".") == 1 and imported not in LAYERS and not imported.startswith(SIMULATOR):
        return "indexer"  # a name in the package itself, such as __version__
    return covering(imported, {*LAYERS, SIMULATOR}) or imported


def parse(name: str, source: str) -> Module:
    """A module out of its source text."""
    return Module(name, ast.parse(source))


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the package."""
    found = []
    for path in sorted((ROOT / "indexer").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found.append(parse(name, path.read_text(encoding="utf-8")))
    return tuple(found)


# The rules: each gives what is wrong with one module, in words.


def has_a_place(module: Module) -> list[str]:
    """Every module has a layer, and the names of the top level are spelled as in the table."""
    return [] if module.part in {*LAYERS, SIMULATOR} else ["is in no layer"]


def imports_downwards(module: Module) -> list[str]:
    """Imports lead to the same layer or down, absolutely spelled."""
    relative = [node.lineno for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) and node.level]
    upwards = [
        imported
        for imported in module.imports()
        if module.layer is not None and LAYERS.get(target(imported), -1) > module.layer
    ]
    return [f"imports {name}, which is above it" for name in upwards] + [f"relative import, line {n}" for n in relative]


def keeps_to_one_outside_thing(module: Module) -> list[str]:
    """The parts of layer 3 don't import one another."""
    if module.layer != OUTSIDE:
        return []
    others = {target(imported) for imported in module.imports()} - {module.part}
    neighbours = sorted(other for other in others if LAYERS.get(other) == OUTSIDE)
    return [f"imports its neighbour {other}" for other in neighbours if (module.part, other) not in ALLIED]


def is_pure_if_low(module: Module) -> list[str]:
    """Layers 0 to 2 take values and give values: no await, SQL, clock, logger or environment."""
    if module.layer is None or module.layer > PURE:
        return []
    impure = sorted({imported.split(".")[0] for imported in module.imports()} & IMPURE_IMPORTS)
    waits = [node.lineno for node in ast.walk(module.tree) if isinstance(node, ASYNC_SYNTAX)]
    clocks = [node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute) and node.attr in CLOCKS]
    return (
        [f"imports {name}" for name in impure]
        + [f"is asynchronous, line {line}" for line in waits]
        + [f"asks the clock ({name})" for name in clocks]
    )


def leaves_to_owners(module: Module) -> list[str]:
    """The database driver, the WebSocket library, the metrics library and the settings have one user each."""
    wrong = []
    for imported in module.imports():
        owned = covering(imported, set(OWNERS))
        own = owned and covering(module.name, {*OWNERS[owned], owned})
        wrong += [] if own or not owned else [f"imports {imported}, which belongs to {sorted(OWNERS[owned])}"]
    return wrong


def starts_no_tasks(module: Module) -> list[str]:
    """Loops are started, watched and stopped in one place."""
    allowed = covering(module.name, set(MAY_START_TASKS))
    return [] if allowed else [f"starts tasks ({name})" for name in module.uses(STARTS_TASKS)]


def takes_no_signals(module: Module) -> list[str]:
    """Signals end the daemon in its own order, so nobody else takes them."""
    allowed = covering(module.name, MAY_TAKE_SIGNALS)
    return [] if allowed else [f"takes signals ({name})" for name in module.uses(TAKES_SIGNALS)]


def keeps_the_oracle_apart(module: Module) -> list[str]:
    """The simulator shares nothing with what it judges, and only the command line knows it."""
    simulator = module.part == SIMULATOR
    ours = [imported for imported in module.imports() if target(imported)]
    if simulator:
        return [f"shares {imported}" for imported in ours if target(imported) != SIMULATOR]
    return [f"imports {imported}" for imported in ours if target(imported) == SIMULATOR and module.layer != TOP]


def cycle(found: tuple[Module, ...]) -> list[str]:
    """The names along a cycle of imports, [] if there is none. Imports inside functions count too."""
    names = {module.name for module in found}
    graph = {}
    for module in found:
        targets = {covering(imported, names) for imported in module.imports()}
        exact = {name for name in targets if name and name != module.name}
        graph[module.name] = exact
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


Rule = Callable[[Module], list[str]]
BREACHES: list[tuple[Rule, str, str]] = [
    (has_a_place, "indexer.extra", ""),
    (has_a_place, "indexer.extra.part", ""),
    (imports_downwards, "indexer.frames", "from indexer.store import Store"),
    (imports_downwards, "indexer.model", "def f():\n    from indexer import frames"),
    (imports_downwards, "indexer.store.writer", "import indexer.daemon"),
    (imports_downwards, "indexer.store.writer", "from .connection import connect"),
    (keeps_to_one_outside_thing, "indexer.sources.file", "from indexer.store import connection"),
    (keeps_to_one_outside_thing, "indexer.embedded.server", "import indexer.store.connection"),
    (is_pure_if_low, "indexer.verify", "async def f(): ..."),
    (is_pure_if_low, "indexer.car", "from time import monotonic"),
    (is_pure_if_low, "indexer.config", "import os.path"),
    (is_pure_if_low, "indexer.syntax", "from datetime import datetime, UTC\ndatetime.now(UTC)"),
    (leaves_to_owners, "indexer.pipeline", "from asyncpg.exceptions import DataError"),
    (leaves_to_owners, "indexer.sources.firehose", "import websockets"),
    (leaves_to_owners, "indexer.http", "from indexer.config import Settings"),
    (leaves_to_owners, "indexer.http", "from indexer import config"),
    (starts_no_tasks, "indexer.pipeline", "import asyncio\nasyncio.create_task(f())"),
    (starts_no_tasks, "indexer.sources.follow", "from asyncio import TaskGroup"),
    (takes_no_signals, "indexer.cli", "import signal\nsignal.signal(signal.SIGTERM, f)"),
    (takes_no_signals, "indexer.cli", "from signal import signal"),
    (takes_no_signals, "indexer.pipeline", "loop.add_signal_handler(15, f)"),
    (keeps_the_oracle_apart, "indexer.simulator.oracle", "from indexer.cbor import cid_text"),
    (keeps_the_oracle_apart, "indexer.simulator.oracle", "from indexer import __version__"),
    (keeps_the_oracle_apart, "indexer.daemon", "from indexer.simulator import World"),
]
ALLOWED: list[tuple[Rule, str, str]] = [
    (imports_downwards, "indexer.metrics", "from indexer import __version__, model"),
    (keeps_to_one_outside_thing, "indexer.store.connection", "from indexer.embedded import EmbeddedPostgres"),
    (leaves_to_owners, "indexer.http", "from indexer.config_values import Listen"),
    (leaves_to_owners, "indexer.store.connection", "import asyncpg"),
    (takes_no_signals, "indexer.embedded.cluster", "import signal\nsend(signal.SIGINT, pids)"),
    (keeps_the_oracle_apart, "indexer.demo", "from indexer.simulator import World"),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in BREACHES))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps_the_rule(rule: Rule) -> None:
    """Every module of the package keeps to its place."""
    findings = [f"{module.name} {wrong}" for module in modules() for wrong in rule(module)]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize(("rule", "name", "source"), BREACHES)
def test_rule_sees_a_breach(rule: Rule, name: str, source: str) -> None:
    """The rule is no dead letter: a module that breaks it is found out."""
    assert rule(parse(name, source))


@pytest.mark.parametrize(("rule", "name", "source"), ALLOWED)
def test_rule_lets_the_rest_be(rule: Rule, name: str, source: str) -> None:
    """What is in order isn't complained about."""
    assert rule(parse(name, source)) == []


def test_no_import_leads_back() -> None:
    """No module needs, by however long a way, one that needs it."""
    assert cycle(modules()) == []
    assert cycle((parse("a", "import b"), parse("b", "def f():\n    from a import c"))) in (
        ["a", "b", "a"],
        ["b", "a", "b"],
    )


def test_whole_package_was_looked_at() -> None:
    """The rules above saw real modules, not an empty folder."""
    assert {"indexer", "indexer.model", "indexer.errors"} <= {module.name for module in modules()}
