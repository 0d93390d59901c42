"""Every statement of ours keeps to what Citus asks of SQL on tables distributed by did, or is known not to."""

from __future__ import annotations

import re

import pytest

from indexer.store.statements import FILES, statement_names
from tests.scaling.exemptions import EXEMPT, OPEN
from tests.scaling.levels import Place, Places, read
from tests.scaling.rules import RULES, Rule, Statement
from tests.scaling.sources import ROOT, Schema, everything, statements

Breach = tuple[str, str]


def breaches(rule: Rule, schema: Schema, places: Places) -> dict[Breach, str]:
    """What breaks a rule: the rule's name and the statement's, and how."""
    found: dict[Breach, str] = {}
    for name, sql in everything(schema):
        statement = Statement(name.partition("(")[0], tuple(read(sql, places)), schema.unstable)
        for how in rule(statement):
            found[rule.__name__, known_as(statement.name)] = f"{statement.name}: {how}"
    return found


def known_as(name: str) -> str:
    """The name by which a statement is exempt."""
    return "pages.sql" if name.startswith("page_") else name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_statement_keeps_to_the_rule(rule: Rule, schema: Schema, places: Places) -> None:
    """Nothing breaks the rule but what is known to; and what is said to break it does."""
    found = breaches(rule, schema, places)
    unknown = {where: how for where, how in found.items() if where not in EXEMPT}
    assert unknown == {}
    assert {where for where in EXEMPT if where[0] == rule.__name__} == found.keys()


def test_no_statement_is_left_out(schema: Schema, places: Places) -> None:
    """All named statements are read, and those that can be filled in for every table of the closed list."""
    names = [name for name, _ in statements()]
    assert {name.partition("(")[0] for name in names} == set(statement_names())
    assert "put_rows(compiled_prompt)" in names
    assert "put_rows(other_record)" in names
    assert {"letta.record", "letta.integrity_issue", "letta_store.freshness_truth"} <= schema.views.keys()
    assert places["letta.record"] is Place.SHARDS
    assert places["letta.source"] is Place.COORDINATOR


def test_nobody_else_writes_sql() -> None:
    """There is no SQL on our tables in the package but in the files that are read here, and in migrations."""
    package = ROOT / "indexer"
    files = {path.relative_to(package).as_posix() for path in package.rglob("*.sql")}
    assert {name for name in files if not name.startswith("migrations/")} == {f"store/{name}" for name in FILES}
    queries = re.compile(r"\b(from|into|join|update|using)\s+letta(_store)?\.\w", re.IGNORECASE)
    writers = {path.name for path in package.rglob("*.py") if queries.search(path.read_text("utf-8"))}
    assert writers == {"demo.py", "demo_spaces.py"}  # which show queries of the views, on a database of their own


def test_what_is_open_is_said_in_the_documentation() -> None:
    """A statement that Citus can't run yet is named in docs/scaling.md."""
    text = (ROOT / "docs" / "scaling.md").read_text("utf-8")
    assert [name for _, name in OPEN if f"`{name.removeprefix('letta_store.')}`" not in text] == []
