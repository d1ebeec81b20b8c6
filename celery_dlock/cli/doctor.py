"""``dlock doctor``: what breaks a promise, and what fixes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from celery_dlock.cli.command import Command, for_programs
from celery_dlock.cli.output import as_json, put
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import Finding, Severity

STYLES: dict[Severity, str] = {"broken": "bold red", "weak": "yellow", "unknown": "cyan"}


@click.command(cls=Command, short_help="Say what breaks a promise, and what fixes it.")
@for_programs
@click.pass_context
def doctor(ctx: click.Context, *, for_programs: bool) -> None:
    """Read the configuration of store, broker and tasks: what breaks a promise, what fixes it.

    Changes nothing. Exits with 1 when something is broken; what is only weak, or cannot be seen,
    leaves it at 0.
    """
    findings = examine(ctx.obj.app)
    if for_programs:
        click.echo(as_json({"findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            put(ctx, _heading(finding), _details(finding), "")
        click.echo(_summary(findings))
    if any(finding.severity == "broken" for finding in findings):
        ctx.exit(1)


def _heading(finding: Finding) -> Text:
    style = STYLES[finding.severity]
    return Text.assemble((finding.severity, style), f"  {finding.check}  ", (finding.where, "bold"))


def _details(finding: Finding) -> Table:
    details = Table.grid(padding=(0, 2, 0, 0))
    details.add_column(width=8, justify="right", style="dim")
    details.add_column(overflow="fold")
    details.add_row("", Text(finding.promise))
    details.add_row("found", Text(finding.found))
    details.add_row("fix", Text(finding.fix))
    return details


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(f"{counts[how]} {how}" for how in STYLES if counts[how]) or "nothing found"
