"""The figures of the drills that ran, one line each, last in the report.

A plugin, and not a part of conftest.py: where pytest-xdist's workers run the drills, its controller has to have this.
"""

from __future__ import annotations

import pytest

NAME = "drill"


def figures(reporter: pytest.TerminalReporter) -> list[str]:
    """The lines that the drills of this session have left, passed and failed ones."""
    reports = (report for outcome in ("passed", "failed") for report in reporter.stats.get(outcome, []))
    return [str(value) for report in reports for name, value in report.user_properties if name == NAME]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the figures, in a section of their own."""
    lines = figures(terminalreporter)
    if lines:
        terminalreporter.section("drills")
        for line in lines:
            terminalreporter.write_line(line)
