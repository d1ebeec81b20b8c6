"""``dlock hold``: a person keeps a key closed, and every command says who and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from celery_dlock.cli import actions as command
from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import PutOnHold
from celery_dlock.core.state import Busy, Outcome, Run
from celery_dlock.ops import overview
from tests.cli.operator import Operator, answers

KEY = "order:42"
WHY = "the provider books twice"
HELD = f"{KEY} is on hold for 1 h, by ann@ops: {WHY}\n"


def holds(desk: Operator, *more: str, key: str = KEY, lasts: str = "1h") -> tuple[int, str]:
    """Ann puts *key* on hold; how it ends, and what is printed."""
    because = ("--for", lasts, "--because", WHY, "--by", "ann@ops")
    result = desk.run("hold", key, *because, *(more or ("--yes",)))
    return result.exit_code, result.output


def test_nobody_new_gets_it_and_who_has_it_goes_on(desk: Operator) -> None:
    runs = desk.hold(KEY)

    assert holds(desk) == (0, HELD)

    refused = desk.backend.enter(desk.claim(KEY, "other")).verdict
    assert isinstance(refused, Busy)
    assert refused.hold is not None
    assert refused.hold.who == f"ann@ops: {WHY}"
    assert desk.holders(KEY) == ["holder"]
    desk.backend.leave(runs, Outcome.DONE)
    assert isinstance(desk.backend.enter(desk.claim(KEY, "other")).verdict, Busy)


def test_lists_show_who_keeps_it_closed_for_how_long_and_why(desk: Operator) -> None:
    desk.hold("account:7", "busy")
    desk.park("account:7", "waits")
    desk.hold(KEY)
    holds(desk)

    for listed in (desk.run("ls").stdout, desk.run("ls", "--watch").stdout):
        _, first, holder, *_ = listed.splitlines()
        assert first.startswith(KEY)  # before a key that is waited for
        assert f"on hold, for 59 min 59 s more, by ann@ops: {WHY}" in first
        assert "holder" in holder
    told = desk.read("ls")["keys"][0]
    assert (told["hold"]["by"], told["hold"]["because"], told["cooling"]) == ("ann@ops", WHY, [])
    until = datetime.fromisoformat(told["hold"]["until"])
    assert timedelta(minutes=59) < until - datetime.now(UTC) <= timedelta(hours=1)


@pytest.mark.parametrize("runs", [False, True])
def test_who_waits_and_the_key_say_so_too(desk: Operator, runs: bool) -> None:
    mine = desk.hold(KEY)
    desk.park(KEY, "waits")
    holds(desk)
    if not runs:
        desk.backend.leave(mine, Outcome.DONE)

    of_task, of_key = desk.run("show", "waits").stdout, desk.run("show", KEY).stdout

    assert f"for '{KEY}' which is on hold until " in of_task
    assert f", by ann@ops: {WHY}{', and held by holder' if runs else ''}" in of_task
    assert "its place is 1st of 1" in of_task
    assert "it is on hold until " in of_key
    assert f", by ann@ops: {WHY}; nobody new gets it before" in of_key
    assert ("nobody holds it\n" in of_key) is not runs


def test_its_end_wakes_who_waits(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    holds(desk)
    desk.park(KEY, "waits")
    asked = answers(monkeypatch, True)

    result = desk.run("hold", KEY, "--end")

    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"{KEY} is on hold no more")
    assert asked == [
        f"End the hold of {KEY} (on hold for 59 min 59 s more, by ann@ops: {WHY}; 1 task waits)?",
    ]
    assert desk.woken() == [("waits", None)]


def test_release_takes_it_from_its_holder_and_the_hold_stays(desk: Operator) -> None:
    desk.hold(KEY)
    holds(desk)

    (released,) = desk.read("release", KEY, "--yes")["actions"]
    assert (released["action"], released["done"]) == ("release", True)
    assert isinstance(desk.backend.enter(desk.claim(KEY, "other")).verdict, Busy)
    refused = desk.run("release", KEY, "--yes")
    assert refused.exit_code == 1
    assert f"by ann@ops: {WHY}; `dlock hold {KEY} --end` ends that" in refused.stderr
    (ended,) = desk.read("hold", KEY, "--end", "--yes")["actions"]

    assert (ended["action"], ended["on_hold_by"], ended["done"]) == ("end_hold", "ann@ops", True)
    assert isinstance(desk.backend.enter(desk.claim(KEY, "other")).verdict, Run)


def others(desk: Operator, was: str, name: str) -> None:
    """Bob puts it on hold meanwhile."""
    assert desk.backend.apply(PutOnHold(KEY, was, name, "bob", "mine", 600 * SECOND)).verdict


def test_only_the_hold_shown_is_changed(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, True, meanwhile=lambda: others(desk, "", "of bob"))
    code, printed = holds(desk, "--by", "ann")
    assert code == 1
    assert f"Nothing was done: the hold of {KEY} is another one by now" in printed

    answers(monkeypatch, True, meanwhile=lambda: others(desk, "of bob", "another"))
    result = desk.run("hold", KEY, "--end")

    assert result.exit_code == 1
    assert f"Nothing was done: the hold of {KEY} is another one by now" in result.stderr


def test_a_second_hold_replaces_the_first(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    holds(desk)
    asked = answers(monkeypatch, True)

    assert holds(desk, "--by", "bob", lasts="90s")[0] == 0

    (question,) = asked
    assert question == (
        f"Keep {KEY} closed for 1 min 30 s (on hold for 59 min 59 s more, by ann@ops: {WHY})?"
    )
    hold = overview.line(desk.app, KEY).hold
    assert hold is not None
    assert hold.by == "bob"
    assert timedelta(0) < hold.until - datetime.now(UTC) <= timedelta(seconds=90)


def test_it_asks_and_says_what_is_there(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.hold(KEY)
    desk.park(KEY, "one", "two")
    asked = answers(monkeypatch, False)

    assert holds(desk, "--by", "ann")[0] == 1

    assert asked == [f"Keep {KEY} closed for 1 h (1 holder goes on; 2 tasks wait)?"]
    assert overview.line(desk.app, KEY).hold is None


@pytest.mark.parametrize(
    ("lasts", "seconds"), [("90s", 90), ("1h30m", 5400), ("7d", 604_800), ("1d2h3m4s", 93_784)]
)
def test_a_time_is_written_as_people_do(lasts: str, seconds: float) -> None:
    assert command._seconds(None, None, lasts) == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize("lasts", ["", "0s", "-1h", "60", "1 h", "1.5h", "8d", "1h1d", "m"])
def test_anything_else_is_refused(desk: Operator, lasts: str) -> None:
    code, printed = holds(desk, lasts=lasts)

    assert code == 2
    assert "a time is such as 90s" in printed


@pytest.mark.parametrize(
    ("because", "by", "told"),
    [
        (" ", "ann", "because= is a line of text"),
        ("two\nlines", "ann", "because= is a line of text"),
        ("\u202eturned", "ann", "because= is a line of text"),
        ("x" * 201, "ann", "because= has 200 characters at most"),
        ("why", "\x1b[2J", "by= is a line of text"),
        ("why", "x" * 101, "by= has 100 characters at most"),
    ],
)
def test_a_text_that_is_no_line_is_refused(
    desk: Operator, because: str, by: str, told: str
) -> None:
    what = ("--for", "1h", "--because", because, "--by", by, "--yes")

    result = desk.run("hold", KEY, *what)

    assert result.exit_code == 1
    assert told in result.stderr
    assert overview.line(desk.app, KEY).is_idle


def test_what_others_have_written_there_steers_no_terminal(desk: Operator) -> None:
    name = "of eve"
    desk.backend.apply(PutOnHold(KEY, "", name, "eve\x1b[2J", "a\nb", 600 * SECOND))

    for shown in (desk.run("ls").output, desk.run("show", KEY).output):
        assert "\x1b" not in shown
        assert "by eve\\x1b[2J: a\\x0ab" in shown


def test_a_program_is_told_what_stands(desk: Operator) -> None:
    told = desk.read("hold", KEY, "--for", "1h", "--because", WHY, "--yes")

    assert told == {"actions": [{"action": "hold", "key": KEY, "was": "", "done": True}]}
    assert "@" in desk.read("ls")["keys"][0]["hold"]["by"]
