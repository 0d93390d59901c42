"""What alerts and dashboards ask of Prometheus, and what the daemon has to answer with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from indexer import metrics
from indexer.metrics import DEFINITIONS, NAMESPACE, Metrics
from indexer.model import Reason
from tests.deploy.programs import DEPLOY

DASHBOARDS: Final = sorted((DEPLOY / "grafana").glob("*.json"))
ALERTS: Final = DEPLOY / "prometheus" / "alerts.yml"
# Given by Prometheus, whatever is scraped.
GIVEN: Final = frozenset({"job", "instance", "le"})
# The values that a label can have, by metric where the label's name alone doesn't say.
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "type": metrics.FRAME_TYPES,
    "action": metrics.ACTIONS,
    "collection": metrics.COLLECTION_LABELS,
    "kind": metrics.RECOMPILE_KINDS,
    "freshness": metrics.FRESHNESS,
    "proof": metrics.PROOFS,
    "severity": metrics.SEVERITIES,
    "queue": ("batch",),
    "dropped_total reason": tuple(Reason),
    "dead_letters_total reason": tuple(Reason),
    "wants reason": metrics.WANT_REASONS,
    "stale_prompts reason": metrics.STALE_REASONS,
    "reconnects_total reason": metrics.RECONNECT_REASONS,
}
_SELECTOR = re.compile(r"\b(letta_indexer_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Expression:
    """A PromQL expression, and where it stands."""

    place: str
    text: str


def alerts() -> list[dict[str, Any]]:
    """Every rule of alerts.yml."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard(path: Path) -> dict[str, Any]:
    """A dashboard as Grafana reads it."""
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return board


def targets(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each panel of a dashboard with each question that it asks."""
    for panel in dashboard(path)["panels"]:
        for target in panel.get("targets", []):
            yield panel, target


def expressions() -> list[Expression]:
    """Every expression of the alerts and the dashboards, with values in the place of Grafana's variables."""
    found = [Expression(f"alert {rule['alert']}", rule["expr"]) for rule in alerts()]
    for path in DASHBOARDS:
        for panel, target in targets(path):
            if "expr" in target:
                text = target["expr"].replace("$__rate_interval", "1m").replace("$job", "letta-indexer")
                found.append(Expression(f"{path.name}: {panel['title']}", text))
    return found


def series_labels() -> dict[str, frozenset[str]]:
    """The labels of each series that a scrape can show, by its name."""
    names: dict[str, frozenset[str]] = {}
    for one in DEFINITIONS:
        for name in ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",):
            names[one.full_name + name] = frozenset(one.labels)
    return names


def faults(expression: Expression) -> list[str]:
    """What an expression asks for that the daemon never answers with: names, labels, values of labels."""
    known = series_labels()
    found: list[str] = []
    asked = set(GIVEN)
    for name, matchers in _SELECTOR.findall(expression.text):
        if name not in known:
            found.append(f"no metric {name}")
            continue
        asked |= known[name]
        for label, operator, value in _MATCHER.findall(matchers):
            if label not in known[name] | GIVEN:
                found.append(f"{name} has no label {label}")
            elif operator in ("=", "!=") and not _is_value(name, label, value):
                found.append(f"{name}: {label} is never {value}")
    for group in _GROUPING.findall(expression.text):
        words = {word.strip() for word in group.split(",") if word.strip()}
        found += [f"grouped by {word}, which nothing there has" for word in sorted(words - asked)]
    return found


def _is_value(name: str, label: str, value: str) -> bool:
    values = _VALUES.get(f"{name.removeprefix(NAMESPACE)} {label}", _VALUES.get(label))
    return values is None or value in values


def closed_labels() -> set[tuple[str, str]]:
    """Each (series, label) whose values a fresh daemon shows: those have to be the closed lists above."""
    fresh = Metrics(clock=lambda: 0.0)
    fresh.source("firehose:a")
    fresh.set_prompts({}, {})
    fresh.set_work({}, 0)
    fresh.set_records({}, {})
    fresh.set_issues({})
    fresh.watch_queue("batch", lambda: 0)
    wrong = set()
    for family in fresh.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label not in GIVEN and not _is_value(sample.name, label, value):
                    wrong.add((sample.name, f"{label}={value}"))
    return wrong
