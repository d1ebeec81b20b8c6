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
from celery_dlock.ops.doctor.finding import SEVERITIES, Finding, Severity

STYLES: dict[Severity, str] = {"broken": "bold red", "weak": "yellow", "unknown": "cyan"}


@click.command(
    cls=Command, short_help="Check the configuration: what breaks a promise, and what fixes it."
)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    default="broken",
    show_default=True,
    help="Exit with 1 for a finding this bad or worse, unless it is waived.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Only look: take no lock, and declare no queue at the broker.",
)
@for_programs
@click.pass_context
def doctor(ctx: click.Context, *, fail_on: Severity, read_only: bool, for_programs: bool) -> None:
    """Check the configuration of store, broker and tasks: what breaks a promise, what fixes it.

    Takes and releases locks of its own, and declares the queues for woken messages, as a worker
    does. Findings that dlock_doctor_ignore waives are shown with their reason and do
    not fail.
    """
    findings = examine(ctx.obj.app, read_only=read_only)
    if for_programs:
        click.echo(as_json({"findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            put(ctx, _heading(finding), _details(finding), "")
        click.echo(_summary(findings))
    fails = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    if any(finding.severity in fails and not finding.waived for finding in findings):
        ctx.exit(1)


def _rank(finding: Finding) -> str:
    return "waived" if finding.waived else finding.severity


def _heading(finding: Finding) -> Text:
    style = "dim" if finding.waived else STYLES[finding.severity]
    return Text.assemble((_rank(finding), style), f"  {finding.check}  ", (finding.where, "bold"))


def _details(finding: Finding) -> Table:
    details = Table.grid(padding=(0, 2, 0, 0))
    details.add_column(width=8, justify="right", style="dim")
    details.add_column(overflow="fold")
    texts = {"": finding.promise, "found": finding.found, "fix": finding.fix}
    if finding.waived:
        texts = {"because": finding.waived, "found": finding.found}
    for label, text in texts.items():
        details.add_row(label, Text(text))
    return details


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(map(_rank, findings))
    kinds = (*SEVERITIES, "waived")
    return ", ".join(f"{counts[rank]} {rank}" for rank in kinds if counts[rank]) or "nothing found"
