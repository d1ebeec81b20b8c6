"""How commands end: with 0, 1 or 2, one line that says why, and never a traceback."""

from __future__ import annotations

import logging
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from kombu.transport import memory

from celery_dlock.cli import main
from celery_dlock.cli.command import _Lines
from celery_dlock.core.canonical import canonical
from tests.cli.operator import COMMANDS, Operator, answers, operator


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"dlock_url": "memory://"}, "live in the memory of the worker's process and cannot be"),
        ({}, "dlock_url is not set"),
    ],
    ids=["memory", "nothing set"],
)
def test_a_store_that_is_unavailable_is_said_in_a_line(config: dict[str, str], said: str) -> None:
    with operator(**config) as desk:
        for command in COMMANDS:
            result = desk.run(*command)
            assert (result.exit_code, result.output.count("\n")) == (1, 1), command
            assert said in result.output


def test_no_line_of_the_help_is_cut() -> None:
    told = CliRunner().invoke(main.dlock, ["--help"]).output

    commands = told.partition("Commands:")[2]
    assert all(f"\n  {command} " in commands for command in main.COMMANDS)
    assert "..." not in commands


@pytest.mark.usefixtures("away")
def test_a_store_that_is_away_is_said_in_a_line(desk: Operator) -> None:
    found = {command[0]: desk.run(*command) for command in COMMANDS}

    show, metrics = found.pop("show"), found.pop("metrics")
    for command, result in found.items():
        assert (result.exit_code, result.output) == (1, "Error: no\\x0aanswer\n"), command
    assert show.exit_code == 1
    assert "the lock store did not answer: no\\x0aanswer" in show.output  # others may know of it
    assert (metrics.exit_code, "dlock_store_up 0.0\n" in metrics.output) == (0, True)
    assert "dlock_held_keys" not in metrics.output


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("hold order:42 --end --yes", 1),
        ("release order:42 --yes", 1),
        ("show order:42", 0),
        ("ls", 0),
    ],
)
def test_a_key_that_cannot_be_read_is_not_said_to_be_free(
    desk: Operator, tmp_path: Path, command: str, code: int
) -> None:
    desk.hold("order:42")
    desk.park("order:42", "waits")
    with closing(sqlite3.connect(tmp_path / "locks.db")) as db, db:
        db.execute("UPDATE state SET holders='garbage' WHERE key='order:42'")

    said = desk.run(*command.split())

    assert said.exit_code == code
    assert re.search("cannot (be )?read", said.output), said.output
    assert "did not answer" not in said.output
    assert "Traceback" not in said.output


def test_metrics_say_whose_they_are_and_may_do_without_the_store(
    desk: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert "dlock_store_up 1.0\n" in (first := desk.run("metrics")).stdout
    assert first.stderr.startswith("PROMETHEUS_MULTIPROC_DIR is not set here")
    assert "dlock_store" not in desk.run("metrics", "--no-gauges").stdout


@pytest.mark.parametrize("program", [False, True], ids=["without a terminal", "--json"])
def test_whoever_cannot_be_asked_is_told_to_say_yes(
    desk: Operator, program: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.dead_letter("order:43", "lost")
    desk.hold("order:42")
    desk.park("order:42", "waits")
    before = desk.read("ls"), desk.read("dead")

    asked = answers(monkeypatch, True) if program else []
    for command in (
        *("release order:42", "cancel waits", "dead lost --replay", "dead --all --replay"),
        *("dead lost --discard", "dead --all --discard"),
    ):
        result = desk.run(*command.split(), *(["--json"] if program else []))
        assert (result.exit_code, result.stdout if program else "", asked) == (1, "", []), command
        assert result.stderr.endswith("use --yes\n")
        assert (desk.read("ls"), desk.read("dead")) == before
        assert desk.woken() == []


@pytest.mark.parametrize("command", [["release", "order:42"], ["cancel", "waits"]], ids=" ".join)
def test_nothing_is_done_when_the_answer_is_no(
    desk: Operator, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.hold("order:42")
    desk.park("order:42", "waits")
    answers(monkeypatch, False)

    result = desk.run(*command)

    assert result.exit_code == 1
    assert "Nothing was done." in result.output
    assert (desk.holders("order:42"), desk.woken()) == (["holder"], [])


def test_a_body_that_still_runs_is_said(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.hold("order:42")
    answers(monkeypatch, False)

    said = desk.run("release", "order:42").output

    for consequence in ("a third of its ttl", "abort", "refused", "NOT stopped", "runs again"):
        assert consequence in said


@pytest.mark.parametrize(
    "command",
    [
        ["release", "order:42", "--token", "1", "--all-holders"],
        ["release", "order:42", "--token", "0"],
        ["release", "order:42", "--cooldown", "--all-holders"],
        ["dead", "--replay"],
        ["dead", "id", "--all", "--replay"],
        ["dead", "id", "--replay", "--discard"],
        ["dead", "id"],
        ["dead", "--all"],
        ["hold", "order:42"],
        ["hold", "order:42", "--for", "1h"],
        ["hold", "order:42", "--for", "1h", "--because", "why", "--end"],
        ["show", "id", "--key", "--task"],
        ["metrics", "--rules", "--dashboard"],
        ["metrics", "--listen", "9808"],
        ["ls", "--limit", "0"],
        ["dead", "--limit", "99999999999999999999"],
        ["web", "--port", "65536"],
        ["ls", "--watch", "--every", "0"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_an_error_of_usage(desk: Operator, command: list[str]) -> None:
    assert desk.run(*command).exit_code == 2


def test_what_is_not_there_is_answered_with_one(desk: Operator) -> None:
    desk.hold("order:42")
    for command in (
        ["release", "order:43", "--yes"],
        ["release", "order:42", "--yes", "--token", "99"],
        ["release", "order:42", "--yes", "--owner", "nobody"],
        ["release", "order:42", "--yes", "--cooldown"],
        ["hold", "order:42", "--end", "--yes"],
        ["cancel", "id", "--yes"],
        ["dead", "id", "--replay", "--yes"],
        ["dead", "--all", "--replay", "--yes"],
        ["dead", "id", "--discard", "--yes"],
        ["dead", "--all", "--discard", "--yes"],
        ["show", "id"],
        ["show", "order:43", "--key"],
    ):
        result = desk.run(*command)
        assert (result.exit_code, result.output.count("Traceback")) == (1, 0), command
        assert result.output.strip(), command
    assert desk.holders("order:42") == ["holder"]


def test_the_lead_of_a_beat_is_not_taken_by_hand(desk: Operator) -> None:
    desk.hold("dlock:beat:shop", "beat@host")

    result = desk.run("release", "dlock:beat:shop", "--yes")

    assert result.exit_code == 1
    assert "dlock beat --step-down" in result.output
    assert desk.holders("dlock:beat:shop") == ["beat@host"]


def test_a_key_is_known_by_the_name_that_its_publisher_gave_it(desk: Operator) -> None:
    desk.hold(canonical("größe:1"))
    desk.park(canonical("größe:1"), "waits")

    assert desk.run("show", "größe:1").exit_code == 0
    assert desk.run("release", "größe:1", "--yes").exit_code == 0
    assert desk.holders(canonical("größe:1")) == []


def test_no_command_that_only_looks_opens_a_connection_to_the_broker(desk: Operator) -> None:
    desk.app.conf.broker_url = "amqp://127.0.0.1:1"  # nobody listens there
    desk.hold("order:42")
    desk.backend.enter(desk.claim("order:42", "waits"))

    for command in (
        ["ls"],
        ["show", "order:42"],
        ["show", "id"],
        ["ls", "--watch"],
        ["metrics"],
        ["dead"],
    ):
        result = desk.run(*command)
        assert "127.0.0.1" not in result.output, command
        assert result.exit_code == (1 if command == ["show", "id"] else 0), command
    assert memory.Transport.global_state.queue_index == {}


def test_a_warning_is_a_line_whatever_was_raised() -> None:
    error = ValueError("a\nb")
    info = (ValueError, error, None)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "%s failed", ("it",), info)

    assert _Lines().format(record) == "it failed: a\\x0ab"
