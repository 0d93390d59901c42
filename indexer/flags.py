"""Command-line options made from the settings, so that no setting is spelled a second time.

    @app.command()
    @with_settings("source", "once")
    def run(settings: Settings) -> None: ...

gives ``run`` the options ``--config``, ``--source`` and ``--once``, with help and defaults taken from
:class:`indexer.config.Settings`. Options arrive as text and are checked where every other source of settings is.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, get_origin

import typer

from indexer.config import (
    CONFIG_FILE,
    CONFIG_VARIABLE,
    Settings,
    default_text,
    find_config,
    flag_name,
    has_flag,
    load_settings,
)

P = ParamSpec("P")
R = TypeVar("R")

_CONFIG = "config"
_PANEL = "Settings"


def with_settings(*names: str) -> Callable[[Callable[Concatenate[Settings, P], R]], Callable[..., R]]:
    """Return a decorator that gives a command ``--config`` and an option for each setting named (none: for all).

    The command's first parameter receives the :class:`Settings`; its other parameters stay as they are. Settings
    without an option here are still read from the environment and the file. The command raises SettingsError
    when one is wrong. Raises KeyError at import for a name that is no setting.
    """
    chosen = names or tuple(name for name in Settings.model_fields if has_flag(name))
    options = [_config_option(), *(_option(name) for name in chosen)]

    def decorate(command: Callable[Concatenate[Settings, P], R]) -> Callable[..., R]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @functools.wraps(command)
        def run(**arguments: Any) -> R:
            path = find_config(arguments.pop(_CONFIG), os.environ, Path.cwd())
            flags = {name: arguments.pop(name) for name in chosen}
            return command(load_settings(flags, os.environ, path), **arguments)  # type: ignore[call-arg]

        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + options
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _config_option() -> inspect.Parameter:
    meaning = f"Read settings from this TOML file. Default: ${CONFIG_VARIABLE}, else ./{CONFIG_FILE} if there is one"
    info = typer.Option(None, "--config", metavar="FILE", help=meaning, rich_help_panel=_PANEL)
    return inspect.Parameter(_CONFIG, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=Path | None)


def _option(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    kind: Any = str
    if field.annotation is bool:
        kind = bool
    elif get_origin(field.annotation) in (tuple, dict):
        kind = list[str]
    declared = f"{flag_name(name)}/{flag_name('no_' + name)}" if kind is bool else flag_name(name)
    extra = field.json_schema_extra
    info = typer.Option(
        None,
        declared,
        metavar=str(extra["metavar"]) if isinstance(extra, dict) and extra["metavar"] else None,
        help=_help(name, field.description or ""),
        rich_help_panel=_PANEL,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind | None)


def _help(name: str, meaning: str) -> str:
    default = default_text(name)
    return f"{meaning} (default: {default})" if default not in ("", "false") else meaning
