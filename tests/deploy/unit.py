"""A systemd unit, read as systemd reads the part of it that a process sees."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.deploy.programs import DEPLOY

UNIT: Final = DEPLOY / "letta-indexer.service"


def settings(path: Path = UNIT) -> dict[str, list[str]]:
    """Every directive of the unit with all values it is given, in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";", "[")):
            found.setdefault(name, []).append(value)
    return found


@dataclass(frozen=True, slots=True)
class Started:
    """What systemd would start: the words of the command, its environment, its folder."""

    command: list[str]
    environment: dict[str, str] = field(repr=False)
    folder: Path


def started(root: Path, unit: Path) -> Started:
    """What ``systemctl start`` makes of an installed unit, with ``root`` in the place of ``/``.

    Credentials are copied to a folder that only their owner can read, as LoadCredential= does; where there is none,
    SetCredential= gives it. Specifiers: %d and %S.
    """
    given = settings(unit)
    state = root / "var/lib"
    credentials = root / "run/credentials"
    credentials.mkdir(parents=True, mode=0o700, exist_ok=True)
    for entry in given.get("SetCredential", []):
        name, _, text = entry.partition(":")
        _keep(credentials / name, text)
    for entry in given.get("LoadCredential", []):
        name, _, source = entry.partition(":")
        if (root / source.lstrip("/")).exists():
            _keep(credentials / name, (root / source.lstrip("/")).read_text(encoding="utf-8"))
    folder = _specified(given["WorkingDirectory"][0], credentials, state)
    Path(folder).mkdir(parents=True, mode=0o700, exist_ok=True)
    environment = dict(
        _specified(entry, credentials, state).split("=", 1) for entry in given.get("Environment", [])
    ) | _from_files(root, given.get("EnvironmentFile", []))
    program, *arguments = shlex.split(given["ExecStart"][0])
    return Started([str(root / program.lstrip("/")), *arguments], environment, Path(folder))


def _keep(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o400)
    path.chmod(0o600)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o400)


def _specified(text: str, credentials: Path, state: Path) -> str:
    return text.replace("%d", str(credentials)).replace("%S", str(state))


def _from_files(root: Path, entries: list[str]) -> dict[str, str]:
    """The variables in the files of EnvironmentFile=; one with a dash before it may be missing."""
    found: dict[str, str] = {}
    for entry in entries:
        path = root / entry.removeprefix("-").lstrip("/")
        if entry.startswith("-") and not path.exists():
            continue
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        found |= dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return found
