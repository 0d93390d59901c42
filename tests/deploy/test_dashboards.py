"""The dashboards: whole, of sources that are provisioned, and every question in SQL answered for a reader."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from tests.deploy.expressions import DASHBOARDS, dashboard, targets
from tests.deploy.programs import DEPLOY
from tests.indexing import Sql, indexing, read_capture

PROVISIONED = DEPLOY / "grafana" / "provisioning"
QUESTIONS = ("Is it keeping up?", "Is it losing anything?", "Is the data good?", "What do the agents do?")
FILTER = re.compile(r"\$__timeFilter\((\w+)\)")
SQL = [(f"{path.stem}: {panel['title']}", panel, target) for path in DASHBOARDS for panel, target in targets(path)
       if "rawSql" in target]  # fmt: skip


@pytest.fixture
async def reader(database: str, pds_a: Path) -> Any:
    """A connection of the role that dashboards use, to an index that has some of everything."""
    async with indexing(database) as index:
        await index.take([*read_capture(pds_a / "frames.bin"), b"not a frame"])
    connection: Sql = await asyncpg.connect(database)
    await connection.execute(
        "update letta_store.repo set want = 'fetch', want_reasons = '{gap}', wanted_since = now(), last_error = 'x: y'"
    )
    await connection.execute("""
        update letta_store.message set valid = false, violations = '[{"field": "seq", "rule": "missing"}]' where seq = 1
    """)
    await connection.execute("set role letta_reader")
    await connection.execute("set default_transaction_read_only = on")
    yield connection
    await connection.close()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_are_whole(path: Path) -> None:
    """Each panel has an id, a title and a place of its own; each has a source that is provisioned."""
    board = dashboard(path)
    panels = board["panels"]
    ids = [panel["id"] for panel in panels]
    titles = [panel["title"] for panel in panels]
    assert len(set(ids)) == len(ids)
    assert all(titles)
    provisioned = yaml.safe_load((PROVISIONED / "datasources" / "letta.yaml").read_text())["datasources"]
    sources = {(source["type"], source["uid"]) for source in provisioned}
    for panel, target in targets(path):
        assert (panel["datasource"]["type"], panel["datasource"]["uid"]) in sources, panel["title"]
        assert target["datasource"] == panel["datasource"], panel["title"]
        refs = [one["refId"] for one in panel["targets"]]
        assert len(set(refs)) == len(refs), panel["title"]
    for variable in board["templating"]["list"]:
        assert (variable["datasource"]["type"], variable["datasource"]["uid"]) in sources
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(panels)))
    assert used == {variable["name"] for variable in board["templating"]["list"]}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_no_panel_covers_another(path: Path) -> None:
    """The panels lie side by side within the 24 columns of the grid."""
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard(path)["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= 24
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]


def test_names_are_unique() -> None:
    """Dashboards don't replace one another, and keep their addresses: their uids are their own."""
    boards = [dashboard(path) for path in DASHBOARDS]
    assert sorted(board["uid"] for board in boards) == ["letta-agents", "letta-health"]
    assert all("id" not in board for board in boards)


def test_the_questions_are_answered() -> None:
    """Rows are titled by the questions that whoever looks has."""
    rows = [panel["title"] for path in DASHBOARDS for panel in dashboard(path)["panels"] if panel["type"] == "row"]
    assert [question for question in QUESTIONS if question not in rows] == []


def test_they_are_provisioned() -> None:
    """Grafana is told of the folder that the dashboards are mounted at, and reads the index as a reader alone."""
    (provider,) = yaml.safe_load((PROVISIONED / "dashboards" / "letta.yaml").read_text())["providers"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]
    assert f"./grafana:{provider['options']['path']}:ro" in compose["volumes"]
    assert compose["environment"]["GF_PATHS_PROVISIONING"] == f"{provider['options']['path']}/provisioning"
    home = Path(compose["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DEPLOY / "grafana" / home.name).is_file()
    sources = yaml.safe_load((PROVISIONED / "datasources" / "letta.yaml").read_text())["datasources"]
    (index,) = [source for source in sources if source["uid"] == "letta-postgres"]
    assert index["user"] == "letta_dashboard"
    assert index["secureJsonData"] == {"password": "$__file{/run/secrets/dashboard_password}"}


def expanded(sql: str) -> str:
    """A panel's SQL as Grafana sends it: its macros replaced, for a range of time that holds everything."""
    text = FILTER.sub(r"\1 between '2000-01-01T00:00:00Z' and '2100-01-01T00:00:00Z'", sql)
    assert "$" not in text, "a macro that this test doesn't know"
    return text


@pytest.mark.parametrize(("panel", "target"), [(panel, target) for _, panel, target in SQL], ids=[n for n, _, _ in SQL])
async def test_questions_in_sql_are_answered(panel: dict[str, Any], target: dict[str, Any], reader: Sql) -> None:
    """Every panel's SQL runs for letta_reader, who may write nothing, and finds something in a filled index.

    A series of times has what Grafana asks of it: a time, at most one text, the rest numbers, in order.
    """
    rows = [dict(row) for row in await reader.fetch(expanded(target["rawSql"]))]
    assert rows, panel["title"]
    if target["format"] == "time_series":
        assert list(rows[0])[:2] == ["time", "metric"]
        assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
        assert {type(value) for row in rows for name, value in row.items() if name not in ("time", "metric")} == {int}


def test_tables_are_bounded() -> None:
    """No panel pulls a whole index into a browser: every table has a limit, or groups by a closed list."""
    tables = {name: target["rawSql"] for name, panel, target in SQL if panel["type"] == "table"}
    assert len(tables) >= 7
    assert [name for name, sql in tables.items() if "limit" not in sql] == ["health: Integrity issues"]
