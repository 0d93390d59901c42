"""Command-line options made from the settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from indexer.config import Settings, flag_name, has_flag
from indexer.errors import SettingsError
from indexer.flags import with_settings

DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"

app = typer.Typer(rich_markup_mode=None)
seen: list[tuple[Settings, list[str] | None, bool]] = []


@app.command()
@with_settings()
def run(settings: Settings) -> None:
    """Run."""
    seen.append((settings, None, False))


@app.command()
@with_settings("only", "quota_rows")
def stale(
    settings: Settings,
    names: Annotated[list[str] | None, typer.Argument()] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON")] = False,
) -> None:
    """Show."""
    seen.append((settings, names, as_json))


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen.clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DATABASE_URL", raising=False)


def invoke(*arguments: str) -> Settings:
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    return seen[-1][0]


def test_help_shows_every_setting_once() -> None:
    """``--help`` names the flag of each field but the secret ones, and what it means begins beside it."""
    text = CliRunner().invoke(app, ["run", "--help"], catch_exceptions=False, env={"COLUMNS": "200"}).output
    flags = re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)
    names = (flag_name(name) for name in Settings.model_fields if has_flag(name))
    assert sorted(flags) == sorted(["--config", "--help", *names])


def test_options_become_settings() -> None:
    """Repeated, boolean and plain options arrive in the settings, checked."""
    settings = invoke("run", "--source", "file:a", "--source", "file:b", "--once", "--max-lag", "5m")
    assert (settings.source, settings.once, settings.max_lag) == (("file:a", "file:b"), True, 300.0)


def test_the_commands_own_parameters_stay() -> None:
    """Arguments and options of the command itself work beside those of the settings."""
    settings = invoke("stale", "a", "b", "--json", "--only", DID)
    assert settings.only == (DID,)
    assert seen[-1][1:] == (["a", "b"], True)


def test_environment_and_file_are_read_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What has no option on this command is still read, and ``--config`` names the file."""
    monkeypatch.setenv("LETTA_INDEXER_MAX_LAG", "7")
    path = tmp_path / "x.toml"
    path.write_text("batch_rows = 8\nquota_rows = 8\n")
    settings = invoke("stale", "--config", str(path), "--quota-rows", "9")
    assert (settings.max_lag, settings.batch_rows, settings.quota_rows) == (7.0, 8, 9)


def test_only_the_named_settings_are_options() -> None:
    """A command doesn't offer flags that mean nothing to it."""
    assert CliRunner().invoke(app, ["stale", "--once"]).exit_code == 2
    assert seen == []


def test_a_wrong_value_is_a_settings_error() -> None:
    """The error comes out as it is, for the command line to turn into exit code 2."""
    with pytest.raises(SettingsError, match="--max-lag: expected a time"):
        invoke("run", "--max-lag", "soon")


def test_a_name_that_is_no_setting_fails_at_import() -> None:
    """A slip of the programmer shows before any user meets it."""
    with pytest.raises(KeyError):
        with_settings("max_lagg")
