"""``celery -A shop dlock …``: what operators ask and tell the locks of an application.

A command is imported when it is named, so that none costs what another one needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

#: Where each command is, which is a function of the same name.
COMMANDS: Mapping[str, str] = {
    "beat": "celery_dlock.cli.beat",
    "cancel": "celery_dlock.cli.actions",
    "dead": "celery_dlock.cli.dead",
    "doctor": "celery_dlock.cli.doctor",
    "hold": "celery_dlock.cli.actions",
    "init": "celery_dlock.cli.init",
    "ls": "celery_dlock.cli.show",
    "metrics": "celery_dlock.cli.serve",
    "release": "celery_dlock.cli.actions",
    "show": "celery_dlock.cli.show",
    "web": "celery_dlock.cli.serve",
}


class Commands(click.Group):
    """The commands by name; Celery imports this module whenever it is started."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=Commands)
def dlock() -> None:
    """Show and manage the locks of this application."""
