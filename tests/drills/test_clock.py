"""The daemon's clock is set, hours forward and back, while events come in: what is indexed doesn't depend on it."""

from __future__ import annotations

from datetime import timedelta
from itertools import cycle
from pathlib import Path
from time import time

import pytest

from indexer import pipeline
from indexer.simulator import Relay
from tests.daemon_process import daemon
from tests.drills.drill import Drills, size
from tests.drills.traffic import flowing, followed, lived

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/*/faketime/libfaketime.so.1")
JUMPS = ("+6h", "-6h", "+0", "-25h", "+49h", "+0")
FAULTS = size(4, 48)
SECONDS = size(0.8, 2.0)  # of traffic at each time
STEPS = size(250, 500)  # in each


@pytest.fixture
def faketime() -> Path:
    """The library that shows a process another time than it is."""
    found = [path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])]
    if not found:
        pytest.skip("not run: needs libfaketime (Debian's package faketime)")
    return found[0]


class FakeClock:
    """The wall clock of processes with this ``environment``; what measures how long things take goes on as ever."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.set("+0")
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset: str) -> None:
        """Set it to the real time and so much, such as ``-6h``; at once, for whoever looks at it."""
        staged = self._file.with_suffix(".new")
        staged.write_text(offset)
        staged.replace(self._file)


def test_time_does_not_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the daemon takes for the present follows the clock forward, and goes on where that is set back."""
    before, hours = pipeline.utc_now(), timedelta(hours=6)
    moved = {"by": 0.0}
    monkeypatch.setattr(pipeline, "time", lambda: time() + moved["by"])
    moved["by"] = hours.total_seconds()
    assert pipeline.utc_now() >= before + hours
    moved["by"] = -hours.total_seconds()
    assert before <= pipeline.utc_now() < before + hours


async def test_clock_jumps(database: str, tmp_path: Path, faketime: Path, drill: Drills) -> None:
    """Set hours forward and back, the clock neither keeps an event out nor lets one in twice."""
    here = drill("clock jumps by hours")
    clock = FakeClock(faketime, tmp_path / "offset")
    now = lived(seed=31, steps=FAULTS * STEPS, span=timedelta(minutes=2))
    async with Relay() as relay:
        arguments = (*followed(relay), "--database-url", database)
        async with daemon(*arguments, environment=clock.environment) as process:
            await process.ready()
            for part, jump in zip(now.parts(FAULTS), cycle(JUMPS), strict=False):
                async with flowing(relay.publish, part, SECONDS) as flow:
                    await flow.moment()
                    clock.set(jump)
                    here.faults += 1
                    await here.recovered(database, flow.next)
            await here.reached(database, relay.seq)
    await here.judge(database, now.truth)
