"""``dlock init``: the tables of a store in SQL, made or printed."""

from __future__ import annotations

import click

from celery_dlock.cli.command import Command, app_of
from celery_dlock.registry import backend_class
from celery_dlock.runtime import runtime


@click.command(cls=Command, short_help="Make the tables of a store on PostgreSQL, or print them.")
@click.option("--sql", is_flag=True, help="Print the statements, and execute none.")
@click.option("--role", help="With --sql: grant this role what workers need.")
@click.pass_context
def init(ctx: click.Context, *, sql: bool, role: str | None) -> None:
    """Make the tables of the lock store, with the role of dlock_url, unless they are there.

    A worker does the same when it first takes a lock. With --sql the statements are printed, for a
    role that may execute them.
    """
    if role is not None and not (sql and role.isprintable()):
        raise click.UsageError("--role names a role, for --sql", ctx)
    locks = runtime(app_of(ctx))
    store = backend_class(locks.settings.url)
    statements = store.tables(role)
    if not statements:
        raise click.ClickException("this store has no tables to make: it needs no init")
    if sql:
        click.echo("\n".join(f"{statement};" for statement in statements))
        return
    locks.backend.now()  # the first request makes them
    click.echo("the tables are there")
