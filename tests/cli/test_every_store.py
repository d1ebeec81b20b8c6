"""The commands over every store that several processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.state import Mode, Outcome
from celery_dlock.ops.gauges import Gauges
from tests.cli.operator import Operator, answers, operator
from tests.services.stores import SHARED, Store


@pytest.fixture(params=SHARED, scope="module")
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.param
    return found


@pytest.fixture
def desk(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Iterator[Operator]:
    """With ``dlock_ttl`` of a minute, for stores that have one lease for all."""
    with operator(dlock_ttl=60.0, **store.settings(request, tmp_path)) as made:
        yield made


def test_what_is_held_and_waited_for_is_listed(desk: Operator) -> None:
    desk.hold("order:1", "first")
    desk.hold("order:2", "second")
    desk.park("order:2", "waits", "waits-too")
    desk.hold("stock", "reader", mode=Mode.SHARED)

    found = desk.read("ls")

    assert [line["key"] for line in found["keys"]] == ["order:2", "order:1", "stock"]
    (second, first, stock) = found["keys"]
    assert (second["waiting"], first["waiting"], first["oldest"]) == (2, 0, None)
    (holder,) = second["holders"]
    assert (holder["task_id"], holder["mode"], holder["expired"]) == ("second", "exclusive", False)
    assert holder["token"] > 0
    assert holder["since"] < holder["expires"]
    assert stock["holders"][0]["token"] is None

    lines = desk.run("ls").output.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["order:2", "second"],
        ["order:1", "first"],
        ["stock", "reader"],
    ]
    assert [line["key"] for line in desk.read("ls", "--waiting")["keys"]] == ["order:2"]
    assert [line["key"] for line in desk.read("ls", "--match", "der:1")["keys"]] == ["order:1"]
    in_line = desk.read("show", "order:2")
    assert [each["task_id"] for each in in_line["queue"]] == ["waits", "waits-too"]
    gauges = Gauges.of(desk.app)
    assert (gauges.held_keys, gauges.waiting_keys, gauges.waiting_tasks) == (3, 1, 2)
    assert gauges.oldest_wait > 0
    assert gauges.oldest_hold > 0


def test_a_key_is_released_and_the_next_one_is_woken(desk: Operator) -> None:
    held = desk.hold("order:42", "stuck")
    desk.park("order:42", "next", "behind")

    result = desk.run("release", "order:42", "--yes")

    assert result.exit_code == 0, result.output
    assert "order:42 is released; stuck (token" in result.output
    assert desk.woken() == [("next", None)]
    (line,) = desk.read("ls")["keys"]
    assert (line["holders"], line["woken"], line["waiting"]) == ([], ["next"], 1)
    (renewed,) = desk.backend.renew([held])
    assert type(renewed).__name__ == "NotHeld"


def test_a_key_that_changed_hands_before_the_answer_is_left_alone(
    desk: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = desk.hold("order:42", "shown")

    def change_hands() -> None:
        desk.backend.leave(shown, Outcome.DONE)
        desk.hold("order:42", "other")

    asked = answers(monkeypatch, True, change_hands)
    result = desk.run("release", "order:42")

    assert asked == ["Take order:42 from task shown?"]
    assert result.exit_code == 1
    assert "Nothing was done: shown no longer holds order:42" in result.output
    assert desk.holders("order:42") == ["other"]


def test_another_delivery_is_left_alone(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = desk.hold("order:42", "redelivered")

    def comes_again() -> None:
        desk.backend.leave(shown, Outcome.ABANDONED)
        desk.hold("order:42", "redelivered")

    answers(monkeypatch, True, comes_again)

    assert desk.run("release", "order:42").exit_code == 1
    assert desk.holders("order:42") == ["redelivered"]


def test_of_several_holders_the_one_that_is_meant_is_released(desk: Operator) -> None:
    two: dict[str, Any] = {"limit": 2}
    desk.hold("pool", "one", **two)
    other = desk.hold("pool", "two", **two)
    (line,) = desk.read("ls")["keys"]
    tokens = {holder["task_id"]: holder["token"] for holder in line["holders"]}

    assert desk.run("release", "pool", "--yes").exit_code == 2
    assert sorted(desk.holders("pool")) == ["one", "two"]

    assert desk.run("release", "pool", "--yes", "--token", str(tokens["one"])).exit_code == 0
    assert desk.holders("pool") == ["two"]

    desk.hold("pool", "three", **two)
    assert desk.run("release", "pool", "--yes", "--owner", other.owner).exit_code == 0
    assert desk.holders("pool") == ["three"]

    desk.hold("pool", "four", **two)
    assert desk.run("release", "pool", "--yes", "--all-holders").exit_code == 0
    assert desk.holders("pool") == []


def test_a_message_that_waits_is_woken_to_end_as_revoked(desk: Operator) -> None:
    desk.hold("order:42")
    desk.park("order:42", "unwanted", "wanted")

    assert desk.run("cancel", "unwanted", "--yes").exit_code == 0

    assert desk.woken() == [("unwanted", "revoked")]
    (called, waits) = desk.read("show", "order:42")["queue"]
    assert (called["task_id"], called["ending"]) == ("unwanted", "revoked")
    assert waits["task_id"] == "wanted"
    assert desk.run("cancel", "nobody", "--yes").exit_code == 1


def test_a_dead_message_is_listed_and_runs_again_when_somebody_says_so(desk: Operator) -> None:
    desk.dead_letter("order:42", "unlucky")
    desk.dead_letter("order:43", "unlucky-too")

    first, second = desk.read("dead")["dead"]

    assert (first["key"], first["task_id"], first["cause"]) == ("order:42", "unlucky", "runs lost")
    assert (first["name"], first["task"]) == ("charge", "unlucky:0:0")
    assert "arguments" not in first
    assert second["task_id"] == "unlucky-too"
    assert Gauges.of(desk.app).dead_messages == 2
    told = desk.read("show", "unlucky")
    assert (told["kind"], told["state"]) == ("task", "dead")

    assert desk.run("dead", "unlucky", "--replay", "--yes").exit_code == 0
    assert desk.woken() == [("unlucky", None)]
    assert desk.run("dead", "--all", "--replay", "--yes").exit_code == 0
    assert desk.woken()[1:] == [("unlucky-too", None)]
    assert desk.read("dead")["dead"] == []
    assert desk.run("dead", "unlucky", "--replay", "--yes").exit_code == 1


def test_a_key_and_a_task_are_told_of(desk: Operator) -> None:
    desk.hold("order:42", "busy")
    desk.park("order:42", "waits")

    of_key = desk.read("show", "order:42")
    assert of_key["kind"] == "key"
    assert of_key["line"]["holders"][0]["task_id"] == "busy"
    assert [each["task_id"] for each in of_key["queue"]] == ["waits"]

    of_task = desk.read("show", "waits")
    assert (of_task["kind"], of_task["state"], of_task["tasks"]) == ("task", "waiting", ["busy"])
    assert desk.read("show", "nothing", code=1)["state"] == "unknown"
