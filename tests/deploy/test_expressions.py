"""Alerts and dashboards ask for what the daemon has, in a language that Prometheus understands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from indexer.metrics import DEFINITIONS
from tests.deploy.expressions import Expression, closed_labels, expressions, faults, series_labels
from tests.deploy.programs import DEPLOY, program, run
from tests.readme import PAGES, page

EXPRESSIONS = expressions()
NAME = re.compile(r"\bletta_indexer_\w+")


def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    """Each expression of alerts and dashboards is PromQL, as promtool reads it; one that isn't is found."""
    promtool = program("promtool")
    rules = [{"record": f"expression:{n}", "expr": one.text} for n, one in enumerate(EXPRESSIONS)]
    assert len(rules) > 50
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}), encoding="utf-8")
    code, said = run(promtool, "check", "rules", path)
    assert (code, f"{len(rules)} rules found" in said) == (0, True), said
    path.write_text(path.read_text(encoding="utf-8").replace("sum by", "sum of by", 1), encoding="utf-8")
    assert run(promtool, "check", "rules", path)[0] != 0


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda one: one.place)
def test_the_daemon_has_what_is_asked_for(expression: Expression) -> None:
    """Every metric, label and value that is asked for exists: a dashboard that stays empty isn't taken for calm."""
    assert faults(expression) == []


def test_what_does_not_exist_is_found() -> None:
    """A name, a label, a value or a grouping that the daemon doesn't have is told, each in its own words."""
    wrong = Expression(
        "here",
        'sum by (colour) (letta_indexer_wants{reason="hunger"}) + letta_indexer_pending{type="x"} + letta_indexer_nil',
    )
    assert faults(wrong) == [
        "letta_indexer_wants: reason is never hunger",
        "letta_indexer_pending has no label type",
        "no metric letta_indexer_nil",
        "grouped by colour, which nothing there has",
    ]


def test_the_lists_of_values_are_those_of_a_scrape() -> None:
    """What counts as a value of a label here is what a daemon shows: nothing it shows is missing from the lists."""
    assert closed_labels() == set()


@pytest.mark.parametrize("name", PAGES)
def test_pages_name_metrics_that_exist(name: str) -> None:
    """Every metric that a page names is one of the daemon's."""
    assert set(NAME.findall(page(name))) - set(series_labels()) - {one.full_name for one in DEFINITIONS} == set()


def test_every_metric_is_on_a_dashboard() -> None:
    """What is counted is shown somewhere; only a position, which grows and tells nothing else, is on no panel."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DEPLOY / "grafana").glob("*.json"))
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(text)} | set(NAME.findall(text))
    assert {one.full_name for one in DEFINITIONS} - asked == {"letta_indexer_cursor_seq"}
