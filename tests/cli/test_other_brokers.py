"""A message of another broker is named, with its broker, wherever somebody looks for it."""

from __future__ import annotations

import pytest

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome, WaitMode
from celery_dlock.errors import BackendUnavailable
from tests.cli.operator import Operator

KEY = "order:42"
ELSEWHERE = "redis://elsewhere:6379/0"


@pytest.fixture(params=["called", "waits"])
def at_other_broker(desk: Operator, request: pytest.FixtureRequest) -> Operator:
    """Task ``theirs`` comes next, and ``ours`` after it."""
    held = desk.hold(KEY)
    queues = Claim(KEY, "theirs:0:0", "1", ttl=60 * SECOND, wait=WaitMode.QUEUE)
    desk.backend.enter(queues, desk.message("theirs", broker=ELSEWHERE))
    desk.park(KEY, "ours")
    if request.param == "called":
        desk.backend.leave(held, Outcome.OVER)
    return desk


def test_it_is_named_with_its_task_its_key_and_in_the_queue(at_other_broker: Operator) -> None:
    def said(*command: str) -> str:
        return at_other_broker.run(*command).output

    assert f"belongs to the broker {ELSEWHERE}" in said("show", "theirs")
    assert "belongs to" not in said("show", "ours")
    assert f"theirs belongs to another broker, {ELSEWHERE}" in (of_key := said("show", KEY))
    assert "ours belongs" not in of_key
    queue = at_other_broker.read("show", KEY)["queue"]
    assert {each["task_id"]: each["broker"] for each in queue} == {
        "theirs": ELSEWHERE,
        "ours": None,
    }


def test_of_a_dead_one_programs_are_told_its_broker(desk: Operator) -> None:
    desk.dead_letter(KEY, "theirs", desk.message("theirs", broker=ELSEWHERE))
    assert [each["broker"] for each in desk.read("dead")["dead"]] == [ELSEWHERE]


def test_it_is_named_among_the_keys_when_it_is_in_the_way(desk: Operator) -> None:
    for key, task, broker in (("a", "ours", None), (KEY, "theirs", ELSEWHERE)):
        held = desk.hold(key)
        queues = Claim(key, f"{task}:0:0", "1", ttl=60 * SECOND, wait=WaitMode.QUEUE)
        fields = {"broker": broker} if broker else {}
        desk.backend.enter(queues, desk.message(task, **fields))
        desk.backend.leave(held, Outcome.OVER)

    output = desk.run("ls").output
    assert f"{KEY}: the next task belongs to the broker {ELSEWHERE}" in output
    assert output.count("belongs to") == 1
    keys = desk.read("ls")["keys"]
    assert {each["key"]: each["broker"] for each in keys} == {"a": None, KEY: ELSEWHERE}


@pytest.mark.parametrize("command", ["ls", f"show {KEY}", "show ours"])
def test_a_message_that_cannot_be_read_hides_nothing_else(
    desk: Operator, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    held = desk.hold(KEY)
    desk.park(KEY, "ours")
    desk.backend.leave(held, Outcome.OVER)

    def unreadable(*_: object) -> None:
        raise BackendUnavailable("no answer")

    monkeypatch.setattr(desk.backend, "message", unreadable)

    result = desk.run(*command.split())

    assert result.exit_code == 0
    assert "ours" in result.output
