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
    "cancel": "celery_dlock.cli.waiting",
    "dead": "celery_dlock.cli.dead",
    "doctor": "celery_dlock.cli.doctor",
    "ls": "celery_dlock.cli.ls",
    "metrics": "celery_dlock.cli.metrics",
    "release": "celery_dlock.cli.release",
    "replay": "celery_dlock.cli.dead",
    "show": "celery_dlock.cli.show",
    "top": "celery_dlock.cli.top",
    "waiting": "celery_dlock.cli.waiting",
    "web": "celery_dlock.cli.web",
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
    """The locks of this application."""
