"""What the commands say of a key that cools down, and how a person opens it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Outcome, Park, WaitMode
from tests.cli.operator import Operator, answers

KEY = "tenant:7"
HOUR = 3600 * SECOND


def cools(desk: Operator, **options: Any) -> None:
    """Its holder has left, and nobody gets it for an hour."""
    desk.backend.leave(desk.hold(KEY, cooldown=HOUR, **options), Outcome.DONE)


def test_it_is_listed_with_the_time_that_is_left(desk: Operator) -> None:
    cools(desk)

    _, row = desk.run("ls").stdout.splitlines()

    assert row.startswith(KEY)
    assert "nobody, for another 59 min 59 s: it is cooling down" in row
    assert "no key is waited for" in desk.run("ls", "--waiting").stdout
    (told,) = desk.read("ls")["keys"]
    assert (told["holders"], told["woken"], told["waiting"]) == ([], [], 0)
    assert [datetime.fromisoformat(at) > datetime.now().astimezone() for at in told["cooling"]]


def test_who_waits_for_it_is_told_until_when(desk: Operator) -> None:
    cools(desk)
    claim = desk.claim(KEY, "waits", wait=WaitMode.QUEUE)
    assert isinstance(desk.backend.enter(claim, desk.message("waits")).verdict, Park)

    told, of_key = desk.run("show", "waits").stdout, desk.run("show", KEY).stdout

    assert f"for '{KEY}' which is cooling down until " in told
    assert "its place is 1st of 1" in told
    assert "nobody holds it\n" in of_key
    assert "it is cooling down until " in of_key
    assert " waits " in desk.run("show", KEY).stdout


def test_one_of_several_slots_may(desk: Operator) -> None:
    cools(desk, limit=2)
    desk.hold(KEY, "other", limit=2)

    assert "one of its slots is cooling down until " in desk.run("show", KEY).stdout


def test_of_one_that_has_cooled_down_nothing_is_said(desk: Operator) -> None:
    desk.backend.leave(desk.hold(KEY, cooldown=1), Outcome.DONE)

    for shown in (desk.run("ls").stdout, desk.run("show", KEY).stdout):
        assert "cooling" not in shown


def test_a_person_opens_it(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    cools(desk)
    claim = desk.claim(KEY, "waits", wait=WaitMode.QUEUE)
    desk.backend.enter(claim, desk.message("waits"))
    asked = answers(monkeypatch, True)

    result = desk.run("release", KEY, "--cooldown")

    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"{KEY} is open")
    assert asked == [f"Open {KEY}, which is cooling down for another 59 min 59 s?"]
    assert desk.woken() == [("waits", None)]


def test_a_program_opens_it_and_whoever_says_no_does_not(
    desk: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cools(desk)
    answers(monkeypatch, False)
    assert desk.run("release", KEY, "--cooldown").exit_code == 1
    assert desk.read("ls")["keys"]

    (told,) = desk.read("release", KEY, "--cooldown", "--yes")["actions"]

    assert (told["action"], told["key"], told["done"]) == ("end_cooldown", KEY, True)
    assert desk.read("ls")["keys"] == []


@pytest.mark.parametrize("who", [(), ("--token", "1"), ("--owner", "holder"), ("--all-holders",)])
def test_a_holder_that_has_left_is_not_opened(desk: Operator, who: tuple[str, ...]) -> None:
    cools(desk)

    result = desk.run("release", KEY, *who, "--yes")

    assert result.exit_code == 1
    assert f"nobody holds {KEY}; it cools down for another 59 min 59 s" in result.stderr
    assert "--cooldown opens it" in result.stderr
    assert desk.read("ls")["keys"]
