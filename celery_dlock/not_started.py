"""A worker or a beat whose configuration is wrong ends with one line, as every command does.

Celery's commands are click's, which prints its own errors so. Whoever starts one in a program of
its own gets what it is: a :exc:`~celery_dlock.ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from celery_dlock.errors import ConfigurationError


class NotStarted(click.ClickException, ConfigurationError):
    """The command prints it, without a traceback, and exits with 1."""


@contextmanager
def or_not_started() -> Iterator[None]:
    """Raise a :exc:`~celery_dlock.ConfigurationError` of the block as one that is printed."""
    try:
        yield
    except ConfigurationError as exc:
        raise NotStarted(str(exc)) from exc
