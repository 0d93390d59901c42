"""The reference implementation (``@atproto/repo`` on Node.js) accepts what the simulator makes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from indexer.simulator import World, events
from indexer.simulator.dagcbor import cid_text
from indexer.simulator.keys import did_key

HERE = Path(__file__).parent / "node"
OPTIONS = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev")


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs verify.mjs, its packages installed outside the source tree (once a machine)."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("not run: needs node and npm")
    manifest = (HERE / "package.json").read_bytes()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "letta-indexer-tests"
    folder = base / f"repo-{hashlib.sha256(manifest).hexdigest()[:16]}"
    if not folder.exists():
        base.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=base))
        (fresh / "package.json").write_bytes(manifest)
        done = subprocess.run([npm, "install", *OPTIONS], cwd=fresh, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(fresh)
            pytest.skip(f"not run: npm could not install: {done.stderr.strip()[-300:]}")
        _publish(fresh, folder)
    script = tmp_path_factory.mktemp("node") / "verify.mjs"
    script.write_bytes((HERE / "verify.mjs").read_bytes())
    (script.parent / "node_modules").symlink_to(folder / "node_modules")
    return [node, str(script)]


def _publish(fresh: Path, folder: Path) -> None:
    """Move an installation to its place, unless another process was faster."""
    try:
        fresh.rename(folder)
    except OSError:
        shutil.rmtree(fresh)


def encoded(car: bytes) -> str:
    """A CAR as the script takes it."""
    return base64.b64encode(car).decode()


def commits_of(did: str, frames: list[bytes]) -> list[dict[str, Any]]:
    """The bodies of an account's ``#commit`` frames."""
    parsed = [events.parse(frame) for frame in frames]
    return [body for header, body in parsed if header["t"] == "#commit" and body["repo"] == did]


def claims(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What a commit claims of its paths, as the reference words it."""
    split = [(op["path"].split("/"), op["cid"]) for op in body["ops"]]
    return [
        {"collection": collection, "rkey": rkey, "cid": cid and cid_text(cid.cid)} for (collection, rkey), cid in split
    ]


def test_the_reference_accepts_repositories_and_commits_of_both_curves(checker: list[str]) -> None:
    """Keys, signatures, trees and CARs verify; each commit proves its records and yields just its operations."""
    world = World(seed=22, accounts=8, p256=0.5, weights={"delete_account": 0, "batch": 30, "delete_conversation": 3})
    assert {account.key.curve for account in world.accounts.values()} == {"secp256k1", "p256"}
    world.run(100)
    first = {did: encoded(account.repository.export()) for did, account in world.accounts.items()}
    frames = world.run(250)
    accounts = [world.accounts[did] for did in first]
    commits = {did: commits_of(did, frames) for did in first}
    question = [
        {
            "did": account.did,
            "key": did_key(account.key),
            "first": first[account.did],
            "commits": [{"car": encoded(body["blocks"]), "claims": claims(body)} for body in commits[account.did]],
            "whole": encoded(account.repository.export()),
        }
        for account in accounts
    ]
    done = subprocess.run(checker, input=json.dumps(question), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert sum(len(answer["commits"]) for answer in answers) > 150
    for account, answer in zip(accounts, answers, strict=True):
        records = account.repository.records
        assert answer["records"] == {path: cid_text(entry.cid) for path, entry in records.items()}
        for body, found in zip(commits[account.did], answer["commits"], strict=True):
            assert found["proven"] == len(body["ops"])
            ops = [(op["action"], op["path"], op["cid"] and cid_text(op["cid"].cid)) for op in body["ops"]]
            assert sorted(ops) == sorted((w["action"], w["path"], w["cid"]) for w in found["writes"])
