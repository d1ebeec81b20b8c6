"""What a task with parents holds and is told: in this process, without waiting."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from celery_dlock import (
    ConfigurationError,
    Fail,
    Lease,
    Limit,
    LockContended,
    LockLost,
    Ordered,
    Queue,
    Replace,
    Shared,
    Skip,
    current_lease,
    fencing,
    lock,
)
from celery_dlock.core.events import Acquired, Released, Skipped
from celery_dlock.core.state import Mode
from tests.services.below import PARENTS, child, elsewhere, modes, waiting
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left


@pytest.fixture(params=PARENTS)
def parent(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_children_run_together_and_keep_the_parent_to_themselves(desk: Desk, parent: str) -> None:
    def body(order: str, lease: Lease) -> list[bool]:
        assert modes(desk, parent) == [Mode.SHARED]
        return [
            elsewhere(desk, "order:43", Shared(parent)),
            elsewhere(desk, Shared(parent)),
            elsewhere(desk, parent),
            elsewhere(desk, f"order:{order}"),
        ]

    result = child(desk, parent, body).delay("42")
    desk.deliver()

    assert result.get() == [True, True, False, False]
    assert nothing_is_left(desk, parent)
    assert nothing_is_left(desk)


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    """With a table for the fence."""
    with closing(sqlite3.connect(":memory:")) as database:
        fencing.create_table(database)
        yield database


def test_its_lease_is_that_of_its_own_key(
    desk: Desk, parent: str, database: sqlite3.Connection
) -> None:
    seen: list[tuple[str, tuple[str, ...], dict[str, int], str]] = []

    def body(order: str, lease: Lease) -> None:
        database.execute("BEGIN")
        fencing.admit(database)
        seen.append((lease.key, lease.keys, dict(lease.fencing_tokens), lease.owner))

    child(desk, parent, body).delay("42")
    desk.deliver()

    ((key, keys, tokens, owner),) = seen
    assert (key, keys, list(tokens)) == ("order:42", ("order:42",), ["order:42"])
    rows = database.execute("SELECT resource, token, owner FROM dlock_fence").fetchall()
    assert rows == [("order:42", tokens["order:42"], owner)]
    # What was taken is told as a whole
    for kind in (Acquired, Released):
        (event,) = desk.happened(kind)
        assert event.keys == tuple(sorted(["order:42", parent]))
        assert event.subject.label == "order:{order}"


def test_the_one_fencing_token_is_still_handed_to_the_body(desk: Desk) -> None:
    @desk.locked(["order:{order}", Shared("all"), Shared("customer:{customer}")], name="charge")
    def charge(order: str, customer: str, *, fencing_token: int) -> list[Any]:
        return [fencing_token, desk.holders("customer:anna"), desk.holders("all")]

    result = charge.delay("42", "anna")
    desk.deliver()

    token, *holders = result.get()
    assert token > 0
    assert holders == [[f"{result.id}:0:0"]] * 2


def test_when_the_parent_is_lost_so_is_the_lock(desk: Desk, parent: str) -> None:
    def body(order: str, lease: Lease) -> None:
        next(term for term in lease.terms if term.key == parent).lose("the store has given it up")
        assert lease.lost
        with pytest.raises(LockLost, match=parent):
            lease.check()
        assert lease.remaining() == 0

    result = child(desk, parent, body).delay("42")
    desk.deliver()
    assert result.get() is None


def test_below_a_child_a_sibling_is_to_be_had(desk: Desk, parent: str) -> None:
    @desk.locked(parent, name="audit")
    def audit() -> None: ...

    def body(order: str, lease: Lease) -> Any:
        if order == "43":
            return [list(lease.keys), modes(desk, parent), current_lease().key]
        with pytest.raises(LockContended, match=parent):
            audit()
        with pytest.raises(LockContended, match=parent), lock(parent, app=desk.app):
            pass
        return charge("43")

    charge = child(desk, parent, body)
    result = charge.delay("42")
    desk.deliver()
    assert result.get() == [["order:43"], ["shared"], "order:43"]


def test_who_is_alone_on_a_parent_may_call_its_children(
    desk: Desk, parent: str, database: sqlite3.Connection
) -> None:
    def body(order: str, lease: Lease) -> Any:
        database.execute("BEGIN")
        fencing.admit(database)
        return [list(lease.fencing_tokens), modes(desk, parent), lease.owner != outer.owner]

    charge = child(desk, parent, body, on_contention=Fail())
    with lock(parent, app=desk.app, timeout=0) as outer:
        assert charge("42") == [["order:42"], [Mode.EXCLUSIVE], True]
        assert database.execute("SELECT resource FROM dlock_fence").fetchall() == [("order:42",)]
        assert elsewhere(desk, "order:42")
    with (
        lock(Limit(parent, 3), app=desk.app, timeout=0),
        pytest.raises(LockContended, match=parent),
    ):
        charge("42")  # two others may be beside it


def test_an_argument_that_makes_a_key_its_own_parent_is_refused(desk: Desk) -> None:
    @desk.locked(["node:{node}", Shared("node:{into}"), Shared("node:{root}")], name="move")
    def move(node: str, into: str, root: str, *, lease: Lease) -> int:
        return len(lease.terms)

    bad, good = move.delay("a", "a", "r"), move.delay("a", "r", "r")
    desk.deliver_all()

    assert isinstance(bad.result, ConfigurationError)
    assert "'node:a' is given twice" in str(bad.result)
    assert good.get() == 2


# How a task waits for its parents, with each policy: in this process, without waiting.


@pytest.mark.parametrize("busy", ["parent", "child"])
def test_when_either_is_taken_none_is_held(desk: Desk, parent: str, busy: str) -> None:
    charge = child(desk, parent)
    with lock(parent if busy == "parent" else "order:42", app=desk.app, timeout=0):
        result = charge.delay("42")
        desk.deliver()
        assert result.state == "RETRY"
        assert len([*desk.holders(parent), *desk.holders("order:42")]) == 1
    desk.deliver()
    assert result.get() > 0


def test_a_skipped_child_says_who_has_the_parent(desk: Desk, parent: str) -> None:
    with lock(parent, app=desk.app, timeout=0):
        result = child(desk, parent, on_contention=Skip()).delay("42")
        desk.deliver()
        assert result.get()["key"] == parent
    assert [event.key for event in desk.happened(Skipped)] == [parent]


def test_who_waits_for_a_parent_does_not_wait_for_a_child(desk: Desk, parent: str) -> None:
    charge = child(desk, parent, on_contention=Replace())
    with lock(parent, app=desk.app, timeout=0):
        sent = [charge.delay(order) for order in ("42", "43", "44")]
        desk.deliver_all()
        assert waiting(desk, parent) == 3
    desk.deliver_all()
    assert all(result.get() > 0 for result in sent)


def test_its_message_is_kept_with_its_own_key_alone(desk: Desk, parent: str) -> None:
    def body(order: str, lease: Lease) -> list[int]:
        return [waiting(desk, f"order:{order}"), waiting(desk, parent)]

    result = child(desk, parent, body, on_contention=Queue(keep=True)).delay("42")
    desk.deliver()

    assert result.get() == [1, 0]


def test_a_key_reserved_for_a_retry_leaves_the_parent(desk: Desk, parent: str) -> None:
    options: Any = {"on_contention": "queue", "reserve": "retry"}

    @desk.locked(["order:{order}", Shared(parent)], name="charge", bind=True, **options)
    def charge(self: Any, order: str) -> int:
        if not self.request.retries:
            raise self.retry(countdown=10)
        return 7

    result = charge.delay("42")
    desk.deliver()
    assert [elsewhere(desk, key) for key in (parent, "order:42")] == [True, False]

    with lock(parent, app=desk.app, timeout=0):
        desk.deliver()
        assert not elsewhere(desk, "order:42")  # it keeps its turn while it waits for the parent
    desk.deliver_all()
    assert result.get() == 7
    assert nothing_is_left(desk)


def test_published_in_order_it_stands_in_the_queue_of_its_own_key(desk: Desk, parent: str) -> None:
    seen: list[int] = []

    @desk.locked(["order:{order}", Shared(parent)], name="charge", on_contention=Ordered())
    def charge(order: str, number: int) -> None:
        seen.append(number)

    for number in range(4):
        charge.delay("42", number)
    assert (waiting(desk, "order:42"), waiting(desk, parent)) == (3, 0)
    if parent == "all":  # of one that sorts behind the key the order is not kept
        with lock(parent, app=desk.app, timeout=0):
            desk.deliver_all()
            assert (waiting(desk, "order:42"), waiting(desk, parent)) == (3, 1)
    desk.deliver_all()
    assert seen == [0, 1, 2, 3]
