"""What programs are told of an act: one document of what was done, also where it was cut off."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock.core.events import Discarded
from celery_dlock.core.operations import Discard
from celery_dlock.core.state import Mode, Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops.action import Action, this_person
from tests.cli.operator import Operator, answers


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Action], object]) -> None:
    """Something *happens* just before each action is carried out."""
    carry_out = Action.carry_out

    def late(action: Action, by: str) -> bool:
        happens(action)
        return carry_out(action, by)

    monkeypatch.setattr(Action, "carry_out", late)


def test_of_a_release_each_holder_is_told(desk: Operator) -> None:
    desk.hold("pool", "one", limit=2)
    desk.hold("pool", "two", limit=2)
    (line,) = desk.read("ls")["keys"]

    told = desk.read("release", "pool", "--all-holders", "--yes")

    assert [(each["key"], each["owner"], each["done"]) for each in told["actions"]] == [
        ("pool", holder["owner"], True) for holder in line["holders"]
    ]
    assert {each["action"] for each in told["actions"]} == {"release"}
    assert desk.holders("pool") == []


def test_a_reader_that_is_released_has_no_token(desk: Operator) -> None:
    desk.hold("stock", "reader", mode=Mode.SHARED)

    (holder,) = desk.read("release", "stock", "--yes")["actions"]

    assert (holder["mode"], holder["token"], holder["done"]) == ("shared", None, True)


def test_a_gone_holder_was_not_released(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    held = desk.hold("order:42", "shown")
    meanwhile(monkeypatch, lambda _: desk.backend.leave(held, Outcome.DONE))

    result = desk.run("release", "order:42", "--yes", "--json")

    (holder,) = json.loads(result.stdout)["actions"]
    assert (result.exit_code, holder["task_id"], holder["done"]) == (1, "shown", False)
    assert "Nothing was done: shown no longer holds order:42" in result.stderr


def test_of_a_cancellation_each_message_is_told(desk: Operator) -> None:
    desk.hold("order:42")
    desk.park("order:42", "waits")

    names = {"key": "order:42", "task": "waits:0:0", "task_id": "waits"}
    assert desk.read("cancel", "waits", "--yes") == {
        "actions": [{"action": "cancel", **names, "done": True}]
    }
    assert desk.woken() == [("waits", "revoked")]


@pytest.mark.parametrize(
    ("broker", "options", "broadcasts"),
    [
        ("memory://", {}, True),
        ("redis://", {}, True),
        ("amqp://", {}, True),
        ("sqs://", {}, False),
        ("sqs://", {"supports_fanout": True}, True),
        ("sqla+sqlite://", {}, False),
    ],
)
def test_what_cannot_be_cancelled_is_not_left_to_a_broker_that_broadcasts_nothing(
    desk: Operator, broker: str, options: dict[str, Any], broadcasts: bool
) -> None:
    desk.app.conf.update(broker_url=broker, broker_transport_options=options)
    result = desk.run("cancel", "runs", "--yes")
    assert "no message of runs waits" in result.stderr
    assert ("reaches no worker" in result.stderr) is not broadcasts
    assert ("`celery control revoke runs`" in result.stderr) is broadcasts


def test_of_what_is_discarded_each_message_is_told(desk: Operator) -> None:
    for key, task in (("order:42", "one"), ("order:43", "two"), ("order:44", "three")):
        desk.dead_letter(key, task)
    (told,) = desk.read("dead", "one", "--discard", "--yes")["actions"]
    assert (told["action"], told["key"], told["task"]) == ("discard", "order:42", "one:0:0")
    assert (told["task_id"], told["task_name"], told["done"]) == ("one", "charge", True)

    told = desk.read("dead", "--all", "--discard", "--yes")["actions"]

    assert [(each["task_id"], each["done"]) for each in told] == [
        ("two", True),
        ("three", True),
    ]
    assert (desk.backend.dead(), desk.woken()) == ([], [])
    happened = [event for event in desk.events if isinstance(event, Discarded)]
    assert [(event.subject.task_name, event.key) for event in happened] == [
        ("charge", f"order:{number}") for number in (42, 43, 44)
    ]
    assert {event.by for event in happened} == {this_person()}


@pytest.mark.parametrize(
    ("expires", "expired"),
    [
        ("2001-02-03T04:05:06+00:00", True),
        ("2001-02-03T04:05:06", True),
        ("2999-02-03T04:05:06+00:00", False),
        ("when it likes", False),
        (7, False),
        (None, False),
    ],
)
def test_what_has_expired_stays_dead(desk: Operator, expires: Any, expired: bool) -> None:
    headers = {"id": "late", "task": "charge", "expires": expires}
    desk.dead_letter("order:42", "late", desk.message("late", headers=headers))
    desk.dead_letter("order:43", "other")

    result = desk.run("dead", "--all", "--replay", "--yes", "--json")

    told = [(each["task_id"], each["done"]) for each in json.loads(result.stdout)["actions"]]
    assert told == [("late", not expired), ("other", True)]
    assert ("late has expired" in result.stderr) is expired
    assert result.exit_code == int(expired)
    assert [letter.key for letter in desk.backend.dead()] == ["order:42"] * expired


def test_what_has_run_is_not_replayed(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.dead_letter("order:42", "copied")
    desk.dead_letter("order:43", "other")

    def copied_runs(action: Action) -> None:
        if action.facts["task_id"] == "copied":
            desk.backend.apply(Discard("order:42", "copied:0:0", 0))

    meanwhile(monkeypatch, copied_runs)

    result = desk.run("dead", "--all", "--replay", "--yes", "--json")

    told = json.loads(result.stdout)["actions"]
    assert [(each["key"], each["task"], each["done"]) for each in told] == [
        ("order:42", "copied:0:0", False),
        ("order:43", "other:0:0", True),
    ]
    assert "copied is no longer a dead letter: it has run" in result.stderr
    assert (result.exit_code, desk.woken()) == (1, [("other", None)])


@pytest.mark.parametrize(
    "command",
    [
        "release order:43 --yes",
        "release order:42 --token 99 --yes",
        "release order:42 --cooldown --yes",
        "hold order:42 --end --yes",
        "cancel id --yes",
        "dead id --replay --yes",
        "dead --all --replay --yes",
        "dead --all --discard --yes",
    ],
)
def test_where_nothing_was_there_to_do_the_list_is_empty(desk: Operator, command: str) -> None:
    desk.hold("order:42")

    result = desk.run(*command.split(), "--json")

    assert (result.exit_code, json.loads(result.stdout)) == (1, {"actions": []})
    assert result.stderr.startswith("Error: ")
    assert desk.holders("order:42") == ["holder"]


def test_of_many_the_first_are_named_in_one_question(
    desk: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        desk.dead_letter(f"order:{number}", f"task-{number}")
    asked = answers(monkeypatch, False)

    result = desk.run("dead", "--all", "--discard")

    named = "; ".join(f"discard task-{number} for order:{number}" for number in range(3))
    assert asked == [f"D{named[1:]}; and 2 more?"]
    assert result.output.count("Its message cannot be restored") == 1
    assert (result.exit_code, len(desk.backend.dead())) == (1, 5)


def test_what_was_done_is_told(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.dead_letter("order:42", "unlucky")
    desk.dead_letter("order:43", "unlucky-too")

    def away(action: Action) -> None:
        if action.names["key"] != "order:42":
            raise BackendUnavailable("away")

    meanwhile(monkeypatch, away)
    result = desk.run("dead", "--all", "--replay", "--yes", "--json")

    assert [each["task_id"] for each in json.loads(result.stdout)["actions"]] == ["unlucky"]
    assert (result.exit_code, result.stderr) == (1, "Error: away\n")
