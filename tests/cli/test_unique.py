"""What the commands say of unique tasks, and how a person ends a claim."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from celery_dlock import locked_task
from celery_dlock.core.lease import SECOND
from celery_dlock.core.unique import UniqueClaim
from tests.cli.operator import Operator, answers, operator
from tests.services.until import until

NAME = "report(day=1)"


def claims(desk: Operator, name: str = NAME, **fields: Any) -> UniqueClaim:
    """Have a unique task live."""
    given = {"task": "lives:0:0", "name": "report", "where": "web:7", "heard": time.time()}
    claim = UniqueClaim(**{**given, **fields})
    desk.backend.swap(name, None, claim.encode(), 3600 * SECOND)
    return claim


def stands(desk: Operator, name: str = NAME) -> bool:
    return desk.backend.swap(name, None, None, 0) is not None


def test_they_are_listed_behind_the_keys(desk: Operator) -> None:
    desk.hold("day:2", "runs")
    claims(desk)
    claims(desk, "report(day=2)", task="runs:0:0", key="day:2")
    claims(desk, "report(day=3)", task="was:0:0", over=True, period_ends=time.time() + 60)

    head, held, blank, columns, *rows = desk.run("ls").stdout.splitlines()

    assert (head.split()[0], held.split()[0], blank) == ("KEY", "day:2", "")
    assert columns.split() == ["UNIQUE", "CLAIM", "TASK", "ID", "AT"]
    assert [row.split() for row in rows] == [
        [NAME, "lives", "the", "broker"],
        ["report(day=2)", "runs", "day:2"],
        ["report(day=3)", "was", "its", "period"],
    ]
    told = desk.read("ls")["unique"]
    assert [(each["claim"], each["task_id"]) for each in told] == [
        (NAME, "lives"),
        ("report(day=2)", "runs"),
        ("report(day=3)", "was"),
    ]


def test_also_where_no_key_is_held_and_only_those_that_are_asked_for(desk: Operator) -> None:
    claims(desk)
    claims(desk, "charge(order=1)")

    everything, some = desk.run("ls").stdout, desk.run("ls", "--match", "charge").stdout

    assert everything.startswith("no key is held or waited for\n\nUNIQUE")
    assert NAME in everything
    assert NAME not in some
    assert "charge(order=1)" in some
    assert "UNIQUE" not in desk.run("ls", "--waiting").stdout
    assert len(desk.read("ls", "--limit", "1")["unique"]) == 1


def test_what_cannot_be_read_is_left_out(desk: Operator) -> None:
    claims(desk)
    desk.backend.swap("nonsense", None, b"nonsense", SECOND)

    assert [each["claim"] for each in desk.read("ls")["unique"]] == [NAME]


def test_a_task_says_that_it_lives(desk: Operator) -> None:
    claims(desk)

    told = desk.run("show", "lives")

    assert f"- lives under the unique claim '{NAME}'" in told.stdout
    assert "task lives: waiting\n- waits in the broker" in told.stdout
    assert told.exit_code == 0


def test_a_key_says_it_of_the_tasks_there(desk: Operator) -> None:
    desk.hold("day:1", "lives")
    claims(desk, key="day:1")
    claims(desk, "report(day=2)", task="other:0:0", key="day:2")

    told = desk.run("show", "day:1", "--key").stdout

    assert f"- lives lives under the unique claim '{NAME}'" in told
    assert "report(day=2)" not in told


def test_an_id_that_a_caller_chose_says_who_lives_instead(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}"
    with operator(dlock_url=f"{url}/locks.db", dlock_history=f"{url}/history.db") as desk:

        @locked_task("day:{day}", app=desk.app, name="of_a_day", unique="done")
        def report(day: int) -> None: ...

        first = report.delay(1)
        report.apply_async((1,), task_id="mine")

        says = f"was found to be a duplicate of {first.id}, which lives under the "
        until("it is in the history", lambda: says in desk.run("show", "mine").stdout)
        told = desk.read("show", "mine")
        assert (told["state"], told["tasks"]) == ("skipped", [first.id])


def test_a_person_ends_a_claim_whose_message_is_lost(
    desk: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims(desk)
    claims(desk, "report(day=2)", task="other:0:0")
    asked = answers(monkeypatch, answer=True)

    done = desk.run("cancel", "lives")

    assert asked == [f"End the unique claim of lives, {NAME}?"]
    said = f"the unique claim has ended: the next call of {NAME} is published"
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, said)
    assert (stands(desk), stands(desk, "report(day=2)")) == (False, True)
    assert desk.run("cancel", "lives", "--yes").exit_code == 1


def test_who_waits_and_is_cancelled_lives_no_more(desk: Operator) -> None:
    desk.hold("day:1", "runs")
    desk.park("day:1", "lives")
    claims(desk, key="day:1", period_ends=time.time() + 60)

    told = desk.read("cancel", "lives", "--yes")["actions"]

    assert [(each["action"], each["done"]) for each in told] == [
        ("end_claim", True),
        ("cancel", True),
    ]
    assert told[0]["claim"] == NAME
    assert not stands(desk)


def test_what_another_has_is_left_alone(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    first = claims(desk)

    def meanwhile() -> None:
        desk.backend.swap(NAME, first.encode(), None, 0)
        claims(desk, task="other:0:0")

    answers(monkeypatch, answer=True, meanwhile=meanwhile)

    done = desk.run("cancel", "lives")

    assert (done.exit_code, stands(desk)) == (1, True)
    assert f"Nothing was done: lives no longer has the unique claim {NAME}" in done.stderr
