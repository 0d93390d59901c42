"""The oracle and a real server agree: its records can be judged, and every outcome occurs among them."""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import libipld
import pytest

from indexer.simulator.freshness import AGENT, PROMPT, instant, judge

CAPTURE = Path(__file__).parents[1] / "captures" / "pds-a"


def records_of(car: Path) -> dict[str, Any]:
    """URI to value of every record in a repository's CAR, found by walking its tree."""
    header, blocks = libipld.decode_car(car.read_bytes())
    commit = blocks[header["roots"][0]]
    found = {}

    def walk(cid: bytes | None) -> None:
        if cid is None:
            return
        walk(blocks[cid]["l"])
        key = b""
        for entry in blocks[cid]["e"]:
            key = key[: entry["p"]] + entry["k"]
            found[f"at://{commit['did']}/{key.decode()}"] = blocks[entry["v"]]
            walk(entry["t"])

    walk(commit["data"])
    return found


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    """Every record the server held in the end."""
    return {uri: value for car in sorted(CAPTURE.glob("*.car")) for uri, value in records_of(car).items()}


def test_the_captured_records_are_those_the_server_reported(records: dict[str, Any]) -> None:
    """The repositories hold what ``expected.json`` says, so judging them judges the real end state."""
    accounts = json.loads((CAPTURE / "expected.json").read_text())
    reported = {record["uri"] for account in accounts.values() for record in account["records"]}
    assert reported == {uri for uri in records if "/xyz.quasigod.lab.letta." in uri}


def test_the_captured_prompts_show_every_outcome(records: dict[str, Any]) -> None:
    """Real data holds fresh prompts and both reasons for staleness, and each verdict follows from its evidence."""
    verdicts = judge(records)
    assert set(verdicts) == {uri for uri in records if f"/{PROMPT}/" in uri}
    outcomes = Counter((verdict.freshness, verdict.stale_reasons) for verdict in verdicts.values())
    reasons = {reason for _, given in outcomes for reason in given}
    assert {freshness for freshness, _ in outcomes} >= {"fresh", "stale"}
    assert reasons == {"template_changed", "memory_changed"}
    for uri, verdict in verdicts.items():
        mine = records[uri]
        agent = records.get(mine["agent"], {})
        if verdict.freshness == "fresh":
            assert sha256(agent["system"].encode()).hexdigest() == mine["rawSystemHash"]
        if verdict.sibling is not None:
            other = records[verdict.sibling]
            assert other["agent"] == mine["agent"]
            assert (instant(other["compiledAt"]) or 0) > (instant(mine["compiledAt"]) or 0)


def test_hiding_every_account_leaves_no_template_to_confirm(records: dict[str, Any]) -> None:
    """With all agents hidden nothing is fresh any more: the confirmations came from agents' records."""
    dids = {uri.split("/")[2] for uri in records if f"/{AGENT}/" in uri}
    assert "fresh" not in {verdict.freshness for verdict in judge(records, dids).values()}
