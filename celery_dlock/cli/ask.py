"""A question before anything is done by hand, and for programs a document of what was done.

Without a terminal there is nobody to answer; a program is not asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from celery_dlock.cli.safe import as_json

#: ``--yes``, for scripts.
yes: Callable[[Any], Any] = click.option("--yes", is_flag=True, help="Do it without asking.")


def agreed(question: str, *, yes: bool, for_programs: bool) -> None:
    """Go on if *yes*, or if the answer is.

    Raises :exc:`click.ClickException` where nobody can answer, and :exc:`click.exceptions.Exit`
    with 1 when the answer is no.
    """
    if yes:
        return
    if for_programs or not sys.stdin.isatty():
        raise click.ClickException(f"{question} Nobody is there to answer: say --yes")
    if not click.confirm(question):
        click.echo("Nothing was done.")
        raise click.exceptions.Exit(1)


@contextmanager
def document(
    about: Mapping[str, Any], name: str, *, for_programs: bool
) -> Iterator[list[dict[str, Any]]]:
    """A list of what was done, which programs are told at the end under *name*, beside *about*.

    They are also told where an error cuts it off: what it names was done.
    """
    done: list[dict[str, Any]] = []
    try:
        yield done
    finally:
        if for_programs:
            click.echo(as_json({**about, name: done}))
