"""The systemd unit: valid, hardened, and with secrets where nobody else reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.programs import program, run
from tests.deploy.unit import UNIT, settings, started

EXPOSURE = 1.5  # of 10, by systemd's own measure; 2 and above is "medium" for a service that needs the network


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the unit whose program exists on this machine."""
    copy = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    assert "ExecStart=/opt/letta-indexer/bin/letta-indexer run\n" in text
    copy.write_text(text.replace("/opt/letta-indexer/bin/letta-indexer", "/bin/true"), encoding="utf-8")
    return copy


def test_systemd_understands_every_line(installed: Path) -> None:
    """systemd-analyze verify has nothing to say about the unit, and would have about a word it doesn't know."""
    analyze = program("systemd-analyze")
    assert run(analyze, "verify", installed) == (0, "")
    text = installed.read_text(encoding="utf-8")
    installed.write_text(text.replace("ProtectHome=yes", "ProtectHomes=yes"), encoding="utf-8")
    assert "ProtectHomes" in run(analyze, "verify", installed)[1]


def test_it_is_hardened() -> None:
    """By systemd's own measure little is exposed, and what remains is what an indexer needs."""
    analyze = program("systemd-analyze")
    code, said = run(analyze, "security", "--offline=true", "--no-pager", UNIT)
    assert code == 0, said
    level = re.search(r"Overall exposure level for letta-indexer\.service: ([\d.]+)", said)
    assert level is not None, said
    print(f"systemd-analyze security: {level[1]} of 10")
    assert float(level[1]) <= EXPOSURE
    open_still = set(re.findall(r"^✗ (\S+)", said, re.MULTILINE))
    assert open_still <= {
        *("PrivateNetwork=", "IPAddressDeny=", "RestrictAddressFamilies=~AF_(INET|INET6)"),  # it is on the network
        "RestrictAddressFamilies=~AF_UNIX",  # PostgreSQL's socket
        *("MemoryDenyWriteExecute=", "DeviceAllow=", "RootDirectory=/RootImage="),
    }


def test_secrets_are_credentials() -> None:
    """The settings that may hold a password reach the service as a credential: in no argument, in no variable."""
    given = settings()
    assert given["LoadCredential"] == ["letta-indexer.toml:/etc/letta-indexer/letta-indexer.toml"]
    assert "LETTA_INDEXER_CONFIG=%d/letta-indexer.toml" in given["Environment"]
    assert given["UMask"] == ["0077"]
    assert given["DynamicUser"] == ["yes"]


def test_what_is_started(tmp_path: Path) -> None:
    """Our reading of the unit, which the test of a new user relies on: files, specifiers, what wins over what."""
    (tmp_path / "etc/letta-indexer").mkdir(parents=True)
    (tmp_path / "etc/letta-indexer/environment").write_text("# note\nLETTA_INDEXER_LOG_FORMAT=console\n\nA=b=c\n")
    (tmp_path / "etc/letta-indexer/letta-indexer.toml").write_text("only = []\n")
    what = started(tmp_path, UNIT)
    assert what.command == [f"{tmp_path}/opt/letta-indexer/bin/letta-indexer", "run"]
    assert what.environment["LETTA_INDEXER_LOG_FORMAT"] == "console"
    assert what.environment["A"] == "b=c"
    credential = Path(what.environment["LETTA_INDEXER_CONFIG"])
    assert (credential.read_text(), credential.stat().st_mode & 0o777) == ("only = []\n", 0o400)
    assert what.folder == tmp_path / "var/lib/letta-indexer"
    assert what.folder.is_dir()
