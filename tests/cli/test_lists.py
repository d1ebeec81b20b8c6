"""What the commands show: how much of it, in which order, and what is left out."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from celery_dlock.ops import overview
from tests.cli.operator import Operator, operator
from tests.services.until import until


def test_nothing_to_list_is_no_error(desk: Operator) -> None:
    assert desk.run("ls").output == "no key is held or waited for\n"
    assert desk.run("ls", "--waiting").output == "no key is waited for\n"
    none = desk.run("ls", "--match", "invoice\n").output
    assert none == "no key with $'invoice\\n' in its name is held or waited for\n"
    assert desk.run("dead").output == "there are no dead letters\n"
    assert desk.read("ls") == {"total": 0, "unreadable": 0, "keys": [], "unique": []}
    assert desk.read("dead") == {"more": False, "dead": []}
    assert desk.run("ls", "--watch").exit_code == 0


def test_the_first_of_many_are_shown(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "BATCH", 3)  # so that they come on several pages
    for number in range(10):
        desk.hold(f"order:{number}", f"task-{number}")

    some, all_ = desk.run("ls", "--limit", "4"), desk.run("ls", "--all")

    assert [line.split()[0] for line in some.stdout.splitlines()[1:]] == [
        f"order:{number}" for number in range(4)
    ]
    assert "4 of 10 keys: --limit and --all show more, --match fewer" in some.stderr
    assert len(all_.stdout.splitlines()) == 1 + 10
    assert all_.stderr == ""
    assert desk.read("ls", "--limit", "4")["total"] == 10


@pytest.mark.parametrize("width", ["20", "80"])
def test_a_narrow_terminal_leaves_out_no_column_and_cuts_no_id(
    desk: Operator, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", width)
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    desk.hold("order:42", first)
    desk.park("order:42", second)

    head, row = click.unstyle(desk.run("ls").stdout).splitlines()
    waiting = click.unstyle(desk.run("show", "order:42").stdout)

    columns = "KEY TASK HOLDER WORKER HELD FOR LEASE LEFT WAITING OLDEST WAIT"
    assert " ".join(head.split()) == columns
    assert row.split()[:2] == ["order:42", first]
    assert {second, "parked"} <= set(waiting.split())


def test_a_key_that_cannot_be_read_is_named_beside_the_others(
    desk: Operator, tmp_path: Path
) -> None:
    desk.hold("order:1", "first")
    desk.hold("order:2", "second")
    with closing(sqlite3.connect(tmp_path / "locks.db")) as db, db:
        db.execute("UPDATE state SET holders='garbage' WHERE key='order:2'")

    listed = desk.run("ls")
    _, broken, sound = listed.stdout.splitlines()

    assert "1 of 2 keys cannot be read" in listed.stderr
    assert desk.read("ls")["unreadable"] == 1

    assert broken == "order:2  cannot be read"
    assert (
        "what is stored of 'order:2' cannot be read" in desk.run("show", "order:2", "--key").stdout
    )
    assert sound.split()[:2] == ["order:1", "first"]
    assert [bool(key["unreadable"]) for key in desk.read("ls")["keys"]] == [True, False]


def test_each_of_several_holders_says_how_many_there_are_and_may_be(desk: Operator) -> None:
    desk.hold("pool", "first", limit=3)
    desk.hold("pool", "second", limit=5)
    desk.hold("order:1", "alone")

    _, first, second, alone = desk.run("ls").stdout.splitlines()

    assert "first 2 of 5" in first
    assert "second 2 of 5" in second
    assert " of " not in alone
    assert "2 of 5 hold it" in desk.run("show", "pool", "--key").stdout


def test_a_queue_is_shown_from_its_head(desk: Operator) -> None:
    desk.hold("order:42")
    desk.park("order:42", *(f"task-{number:02}" for number in range(40)))

    few, many = desk.read("show", "order:42"), desk.read("show", "order:42", "--limit", "35")

    assert {each["name"] for each in few["queue"][:20]} == {"charge"}
    assert "1  charge  task-00" in desk.run("show", "order:42").stdout
    assert [each["task_id"] for each in few["queue"]] == [f"task-{n:02}" for n in range(30)]
    assert [each["task_id"] for each in many["queue"]] == [f"task-{n:02}" for n in range(35)]
    assert (few["total"], many["total"]) == (40, 40)
    assert "30 of 40 that wait: --limit shows more" in desk.run("show", "order:42").stderr


def test_a_lease_that_has_expired_is_said_to_be(desk: Operator) -> None:
    desk.hold("order:42", ttl=1)

    assert "expired" in desk.run("ls").output
    (line,) = desk.read("ls")["keys"]
    assert line["holders"][0]["expired"] is True


def test_a_key_that_is_the_id_of_a_task_as_well_is_said_to_be(desk: Operator) -> None:
    desk.hold("42", "other")
    desk.park("42", "42")

    both, of_task = desk.run("show", "42"), desk.run("show", "42", "--task")

    assert both.stdout.startswith("key 42\n")
    assert both.stderr == "42 is also a task id: --task shows that\n"
    assert of_task.stdout.startswith("task 42: waiting\n")
    assert of_task.stderr == desk.run("show", "42", "--key").stderr == ""


def test_what_is_not_known_may_be_a_key_that_is_free(desk: Operator) -> None:
    desk.hold("order:42", "holder")

    of_free, of_task = desk.run("show", "order:43"), desk.run("show", "order:43", "--task")

    assert of_free.stderr == "if order:43 is a key, nobody holds it and nobody waits for it\n"
    assert of_task.stderr == desk.run("show", "order:42").stderr == ""


def test_what_has_happened_to_a_key_is_told_in_order(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from celery_dlock import lock
    from celery_dlock.monitoring import batching

    config = {"dlock_history": f"sqlite:///{tmp_path / 'history.db'}"}
    with operator(dlock_url=f"sqlite:///{tmp_path / 'locks.db'}", **config) as desk:
        with lock("order:42", app=desk.app):
            pass

        def written() -> Any:
            batching.end()
            told = desk.read("show", "order:42")
            return told if len(told["events"]) == 2 else None

        told = until("it is in the history", written)
        shown = desk.run("show", "order:42").stdout

    assert [event["event"] for event in told["events"]] == ["Acquired", "Released"]
    assert told["events"][0]["token"] > 0
    assert "WHAT HAPPENED" in shown
    assert shown.index("took 'order:42'") < shown.index("released 'order:42'")


def test_arguments_are_shown_when_asked_for_and_as_their_publisher_wants(desk: Operator) -> None:
    hidden = {"id": "b", "task": "charge", "argsrepr": "(***)", "kwargsrepr": "{}"}
    pickled = {"content_type": "application/x-python-serialize", "body": b"\x80cos\nsystem\n"}
    desk.dead_letter("order:1", "a", desk.message("a"))
    desk.dead_letter("order:2", "b", desk.message("b", headers=hidden))
    desk.dead_letter("order:3", "c", desk.message("c", **pickled))
    desk.dead_letter("order:4", "d", b"no message at all")

    assert "secret" not in desk.run("dead").output
    assert all("arguments" not in each for each in desk.read("dead")["dead"])
    told = {each["task_id"]: each for each in desk.read("dead", "--args")["dead"]}
    assert told["a"]["arguments"] == "[42] {'note': 'secret'}"
    assert told["b"]["arguments"] == "(***) {}"
    assert told["c"]["arguments"] is told["d"]["arguments"] is None
    assert (told["c"]["name"], told["d"]["name"]) == ("charge", None)
    assert "secret" in desk.run("dead", "--args").output


def test_json_is_one_document_also_where_something_is_left_out(desk: Operator) -> None:
    for number in range(3):
        desk.hold(f"order:{number}")

    assert len(json.loads(desk.run("ls", "--json", "--limit", "1").output)["keys"]) == 1


def test_an_end_that_no_calendar_has_is_shown_as_its_last_day(desk: Operator) -> None:
    desk.hold("order:42", ttl=9 * 10**18)  # as somebody else may have written it
    desk.hold("order:43")

    for command in (["ls"], ["ls", "--watch"], ["show", "order:42"], ["show", "holder"]):
        done = desk.run(*command)
        assert done.exit_code == 0, done.output
        assert "order:42" in done.output
    held = {line["key"]: line["holders"][0] for line in desk.read("ls")["keys"]}
    assert held["order:42"]["expires"] == "9999-12-30T00:00:00+00:00"
    assert set(held) == {"order:42", "order:43"}
