"""The alerts fire when they should and not otherwise, and whoever is called finds what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.expressions import ALERTS, alerts
from tests.deploy.programs import DEPLOY, program, run
from tests.readme import page

TESTS = Path(__file__).with_name("alerts_test.yml")
WATCHED = {  # what has to be watched, by the alert that does
    "lag": "LettaIndexerLag",
    "no frames": "LettaIndexerNoFrames",
    "a source cut off": "LettaIndexerSourceDown",
    "wants growing": "LettaIndexerWantsGrowing",
    "old wants": "LettaIndexerWantOld",
    "dead letters": "LettaIndexerDeadLetters",
    "database down": "LettaIndexerDatabaseDown",
    "no writer": "LettaIndexerNoWriter",
    "no daemon": "LettaIndexerDown",
    "stale prompts": "LettaIndexerStalePrompts",
    "disk filling": "LettaIndexerDiskFilling",
}


def test_prometheus_takes_rules_and_configuration() -> None:
    """promtool finds nothing wrong with the alerts, nor with the configuration that names them."""
    promtool = program("promtool")
    code, said = run(promtool, "check", "rules", "--lint-fatal", ALERTS)
    assert code == 0, said
    code, said = run(promtool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert (code, f"{len(alerts())} rules found" in said) == (0, True), said


def test_alerts_fire_as_they_should(tmp_path: Path) -> None:
    """Played against series of numbers each alert fires and stays silent where alerts_test.yml says."""
    promtool = program("promtool")
    code, said = run(promtool, "test", "rules", TESTS)
    assert code == 0, said
    broken = tmp_path / "broken.yml"
    rules = ALERTS.read_text(encoding="utf-8").replace("> 300", "> 500")
    (tmp_path / "alerts.yml").write_text(rules, encoding="utf-8")
    broken.write_text(TESTS.read_text(encoding="utf-8").replace("../../deploy/prometheus/", ""), encoding="utf-8")
    assert run(promtool, "test", "rules", broken)[0] != 0


def test_each_alert_is_tested_both_ways() -> None:
    """Every alert has a moment at which it has to fire and one at which it mustn't."""
    cases = [case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    named = {rule["alert"] for rule in alerts()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == named
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == named


def test_all_that_matters_is_watched() -> None:
    """There is an alert for each thing that somebody has to be called for, and no other."""
    assert {rule["alert"] for rule in alerts()} == set(WATCHED.values())


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_whoever_is_called_finds_what_to_do(rule: dict[str, Any]) -> None:
    """Each alert says how bad it is, what happened, and leads to a section that says what it means and what to do."""
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page("docs/runbook.md"), re.MULTILINE | re.DOTALL))
    section = sections[rule["alert"]]
    assert [word for word in ("**Means**", "**Look at**", "**Do**") if word not in section] == []


def test_the_runbook_has_no_other_sections() -> None:
    """A section of an alert that is gone is gone too."""
    assert re.findall(r"^## (.*)$", page("docs/runbook.md"), re.MULTILINE) == [rule["alert"] for rule in alerts()]
