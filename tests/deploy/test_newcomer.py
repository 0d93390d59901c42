"""README.md, Deploy, followed word by word: the real PDS is indexed, and an alert tells when it is cut off.

What is real: every command of the section is given to a shell as it stands there, the package is installed into an
environment of its own, PostgreSQL and Prometheus are Debian's programs, unit, alerts and configuration are those of
deploy/, the PDS is the reference one. What isn't, since a test neither owns its machine nor runs under systemd:

- ``apt-get`` and ``systemctl`` are noted, not done; PostgreSQL and Prometheus run as processes on free ports;
- ``/etc``, ``/opt`` and ``/var/lib`` are folders of the test, and ports in commands and targets.yml are free ones;
- the daemon is what the unit's ExecStart says with the unit's environment, credential and folder, as a plain process:
  its user, its sandbox and its restarts are systemd's work, and test_unit.py has what can be said of them;
- /etc/letta-indexer/environment names the PDS of the test, its directory and a free port;
- Prometheus looks every second, and the minutes an alert waits are seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.daemon_process import eventually
from tests.deploy.debian import debian_postgres, free_port
from tests.deploy.newcomer import Machine, blocks, status_command
from tests.deploy.programs import program
from tests.deploy.unit import started
from tests.gateway import Passage
from tests.pds.letta import Letta
from tests.pds.process import PdsProcess
from tests.pds.real import RealPds

PATIENCE = 120.0  # seconds, also for a busy machine
CUT = "LettaIndexerSourceDown"
WRITTEN = 'sum(letta_indexer_rows_written_total{job="letta-indexer"})'


@pytest.fixture
def pds_process() -> Iterator[PdsProcess]:
    """A PDS of this test's own."""
    with PdsProcess.start() as process:
        yield process


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """The machine of the newcomer, on which nothing of ours is installed."""
    with debian_postgres() as postgres:
        machine = Machine(tmp_path / "root", postgres)
        machine.prepare()
        yield machine


@contextmanager
def process(
    name: str, command: list[str], folder: Path, environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs as long as the block; what it said is shown if the block fails."""
    with log.open("w") as output:
        running = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield running
        except BaseException as error:
            error.add_note(f"{name} said:\n{log.read_text()[-4000:]}")
            raise
        finally:
            running.terminate()
            running.wait(timeout=60)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A client of the running Prometheus; ``programs`` are it and what it watches."""

    url: str
    http: aiohttp.ClientSession
    programs: tuple[subprocess.Popen[bytes], ...]

    async def get(self, path: str, **query: str) -> Any:
        """The data of an answer; None while it is starting. AssertionError once a program has ended."""
        assert [program.args for program in self.programs if program.poll() is not None] == []
        try:
            async with self.http.get(f"{self.url}/api/v1/{path}", params=query) as response:
                return (await response.json())["data"] if response.status == 200 else None
        except aiohttp.ClientConnectionError:
            return None

    async def value(self, expression: str) -> float:
        """The first value of an expression, 0 where it has none."""
        data = await self.get("query", query=expression)
        return float(data["result"][0]["value"][1]) if data and data["result"] else 0.0

    async def firing(self) -> set[str]:
        """The names of the alerts that are firing."""
        data = await self.get("alerts")
        return {one["labels"]["alertname"] for one in data["alerts"] if one["state"] == "firing"}

    async def reaches(self, expression: str, least: float) -> None:
        """Wait until the first value of an expression is this or more."""

        async def reached() -> bool:
            return await self.value(expression) >= least

        await eventually(reached, within=PATIENCE)

    async def fires(self, alert: str, *, ends: bool = False) -> float:
        """Wait until an alert fires, or ``ends``; the seconds that took."""

        async def seen() -> bool:
            return (alert in await self.firing()) is not ends

        begun = monotonic()
        await eventually(seen, within=PATIENCE)
        return monotonic() - begun


def impatient(machine: Machine, ports: dict[str, int]) -> None:
    """Let Prometheus look every second, and alerts that wait for minutes wait for as many seconds."""
    folder = machine.root / "etc/prometheus"
    for name, pattern, instead in (
        ("prometheus.yml", r"_interval: \d+s", "_interval: 1s"),
        ("alerts.yml", r"for: (\d+)[mh]", r"for: \1s"),
        ("targets.yml", r":9464", f":{ports['9464']}"),
    ):
        text, changed = re.subn(pattern, instead, (folder / name).read_text(encoding="utf-8"))
        assert changed
        (folder / name).write_text(text, encoding="utf-8")


@asynccontextmanager
async def running(machine: Machine, ports: dict[str, int], clean: dict[str, str]) -> AsyncIterator[Prometheus]:
    """What systemd would run: the daemon, by its unit, and Prometheus."""
    unit = started(machine.root, machine.root / "etc/systemd/system/letta-indexer.service")
    environment = clean | unit.environment | {"PGPORT": str(machine.postgres.port)}
    prometheus = [
        program("prometheus"),
        f"--config.file={machine.root}/etc/prometheus/prometheus.yml",
        f"--storage.tsdb.path={machine.root}/var/lib/prometheus",
        f"--web.listen-address=127.0.0.1:{ports['9090']}",
    ]
    with (
        process("the daemon", unit.command, unit.folder, environment, machine.root / "daemon.log") as daemon,
        process("prometheus", prometheus, machine.root, clean, machine.root / "prometheus.log") as scraper,
    ):
        async with aiohttp.ClientSession() as http:
            yield Prometheus(f"http://127.0.0.1:{ports['9090']}", http, (daemon, scraper))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the test happens: its ports by those that the README has, and the environment of whoever types."""

    machine: Machine
    ports: dict[str, int]
    environment: dict[str, str]

    def answers(self, commands: str) -> list[Any]:
        """What commands say, line by line, to somebody who types them: JSON."""
        for known, here in self.ports.items():
            commands = commands.replace(f":{known}/", f":{here}/")
        return [json.loads(self.machine.follow([line], self.environment)) for line in commands.splitlines()]


@pytest.fixture
def place(machine: Machine) -> Place:
    """The machine with an owner whose environment holds no setting of ours."""
    kept = [name for name in os.environ if name in ("PATH", "HOME", "LANG") or name.startswith("PIP_")]
    kept += [name for name in os.environ if name.lower().endswith("_proxy")]
    environment = {name: os.environ[name] for name in kept}
    return Place(machine, {"9464": free_port(), "9090": free_port()}, environment)


def install(place: Place, steps: list[str], settings: dict[str, str]) -> None:
    """Do what the README says, on a machine whose /etc/letta-indexer/environment has these settings."""
    folder = place.machine.root / "etc/letta-indexer"
    folder.mkdir()
    lines = [f"LETTA_INDEXER_{name}={value}\n" for name, value in settings.items()]
    (folder / "environment").write_text("".join(lines), encoding="utf-8")
    begun = monotonic()
    place.machine.follow(steps, place.environment)
    print(f"installed in {monotonic() - begun:.0f} s")
    assert place.machine.noted() == [
        "apt-get install -y curl python3-venv postgresql prometheus",
        *(f"systemctl {words}" for words in ("daemon-reload", "enable letta-indexer", "start letta-indexer")),
        "systemctl reload prometheus",
    ]
    assert (folder / "letta-indexer.toml").stat().st_mode & 0o777 == 0o600
    impatient(place.machine, place.ports)


async def test_deploy_as_a_new_user(place: Place, pds_process: PdsProcess) -> None:
    """Done as the README says the real PDS is indexed and scraped; cut off an alert fires, back again it ends."""
    program("curl")
    program("prometheus")
    *steps, look = blocks()
    pds_port = urlsplit(pds_process.url).port
    async with (
        Passage(lambda: asyncio.open_connection("localhost", pds_port)) as way,
        RealPds.attach(pds_process) as pds,
    ):
        settings = {"SOURCE": f"ws://127.0.0.1:{way.port}", "PLC_URL": pds.plc_url, "ALLOW_PRIVATE_HOSTS": "true"}
        listen = {"LISTEN": f"127.0.0.1:{place.ports['9464']}"}
        await asyncio.to_thread(install, place, steps, settings | listen)
        async with running(place.machine, place.ports, place.environment) as prometheus:
            await prometheus.reaches("letta_indexer_source_up", 1)
            letta = Letta(await pds.create_account("alice"))
            await letta.begin()
            await prometheus.reaches(WRITTEN, 3)
            await asyncio.to_thread(is_well, place, look)

            await way.close()
            print(f"{CUT} fired {await prometheus.fires(CUT):.0f} s after the cut")
            await letta.say("nobody hears this yet", 1)
            await way.open()
            print(f"{CUT} ended {await prometheus.fires(CUT, ends=True):.0f} s after the source was back")
            await prometheus.reaches(WRITTEN, 4)


def is_well(place: Place, look: str) -> None:
    """All that the README tells to look at says that the records are indexed and proven, and that nothing is wrong."""
    ready, targets, alerts = place.answers(look)
    assert (ready["ready"], ready["reasons"]) == (True, [])
    assert [target["health"] for target in targets["data"]["activeTargets"]] == ["up"]
    assert [alert["labels"]["alertname"] for alert in alerts["data"]["alerts"]] == []
    (status,) = place.answers(f"{status_command()} --json")
    verified = {row["collection"].rpartition(".")[2]: row["verified"] for row in status["records"]}
    assert verified == {"agent": 1, "compiledPrompt": 1, "conversation": 1}
