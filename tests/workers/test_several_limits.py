"""``[Limit(…), Shared(…), …]``: each key is held in its own way, and how such a task waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import (
    ConfigurationError,
    Lease,
    Limit,
    LockContended,
    LockedTask,
    Queue,
    Replace,
    Shared,
    lock,
)
from celery_dlock.core.events import Woken
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, KeyState, Mode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.several import RESERVED_FOR
from celery_dlock.ops import actions
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left

pytestmark = pytest.mark.stores

CATALOG, TENANT, IMPORT = "catalog", "tenant:7", "import"
EACH, ALL = 2, 3
LONG = 100_000 * SECOND

Ran = list[int]
Make = Callable[..., LockedTask]


@pytest.fixture
def ran() -> Ran:
    return []


@pytest.fixture
def make(desk: Desk, ran: Ran) -> Make:
    def make(**options: Any) -> LockedTask:
        given = {"name": "load", "on_contention": Queue(max_wait=None), **options}

        @desk.locked([Shared(CATALOG), Limit("import", ALL), Limit("tenant:{t}", EACH)], **given)
        def load(number: int, t: int = 7) -> None:
            ran.append(number)

        return load

    return make


def fill(desk: Desk, key: str, limit: int, mode: Mode = Mode.EXCLUSIVE) -> list[Claim]:
    """Take all slots of *key*, for nobody in this process."""
    claims = [
        Claim(key, f"other-{n}:0:0", f"n{n}", LONG, mode=mode, limit=limit) for n in range(limit)
    ]
    for claim in claims:
        runtime(desk.app).backend.enter(claim)
    return claims


def free(desk: Desk, *claims: Claim) -> None:
    runtime(desk.app).manager.take_back(claims)


def at(desk: Desk, key: str) -> KeyState:
    return runtime(desk.app).backend.peek(key)


def reserved(desk: Desk, key: str) -> list[str]:
    """The tasks that have a turn there and no message."""
    return [turn.task for turn in at(desk, key).grants if not turn.parked]


@pytest.mark.every_store
def test_who_waits_for_the_wide_limit_keeps_its_slot_of_the_narrow_one(
    desk: Desk, make: Make, ran: Ran
) -> None:
    others = fill(desk, IMPORT, ALL)
    result = make().delay(1)
    desk.deliver()
    assert reserved(desk, TENANT) == [f"{result.id}:0:0"]
    assert (at(desk, IMPORT).parked, nothing_is_left(desk, CATALOG)) == (1, True)

    free(desk, others[0])
    desk.deliver()

    assert (ran, len(desk.happened(Woken))) == ([1], 1)
    free(desk, *others)
    assert all(nothing_is_left(desk, key) for key in (CATALOG, TENANT, IMPORT))


def test_who_waits_for_the_narrow_limit_has_nothing_of_the_wide_one(
    desk: Desk, make: Make, ran: Ran
) -> None:
    others = fill(desk, TENANT, EACH)
    load = make()
    for number in range(4):
        load.delay(number)
    load.delay(9, t=8)
    desk.deliver_all()
    assert (at(desk, TENANT).parked, nothing_is_left(desk, IMPORT), ran) == (4, True, [9])

    free(desk, *others)
    desk.deliver_all()
    assert ran == [9, 0, 1, 2, 3]


def test_a_turn_at_the_wide_one_goes_on_when_the_narrow_one_has_to_be_waited_for_again(
    desk: Desk, clock: ManualClock, make: Make, ran: Ran
) -> None:
    # Given one that has waited for so long that its slot of the narrow one is another's
    others = fill(desk, IMPORT, ALL)
    load = make()
    load.delay(1)
    load.delay(2, t=8)
    desk.deliver_all()
    clock.advance(RESERVED_FOR / SECOND)
    narrow = fill(desk, TENANT, EACH)

    free(desk, others[0])
    desk.deliver()

    # Then the next one runs meanwhile, And it is the first as soon as it has both
    assert (at(desk, TENANT).parked, reserved(desk, IMPORT)) == (1, [])
    desk.deliver_all()
    assert ran == [2]
    free(desk, *narrow)
    desk.deliver_all()
    assert ran == [2, 1]
    assert nothing_is_left(desk, TENANT)


def test_who_is_revoked_at_the_wide_one_ends_at_once_though_the_narrow_one_is_taken(
    desk: Desk, clock: ManualClock, make: Make
) -> None:
    others = fill(desk, IMPORT, ALL)
    result = make().delay(1)
    desk.deliver()
    clock.advance(RESERVED_FOR / SECOND)
    narrow = fill(desk, TENANT, EACH)

    assert actions.cancel(desk.app, actions.Message(IMPORT, f"{result.id}:0:0"))
    desk.deliver_all()

    assert result.state == "REVOKED"
    free(desk, *others, *narrow)
    assert all(nothing_is_left(desk, key) for key in (TENANT, IMPORT))


def test_who_has_waited_for_too_long_at_the_wide_one_leaves_the_narrow_one(
    desk: Desk, clock: ManualClock, make: Make
) -> None:
    fill(desk, IMPORT, ALL)
    result = make(on_contention=Queue(max_wait=10)).delay(1)
    desk.deliver()

    clock.advance(11)
    desk.sweep()
    desk.deliver_all()

    assert result.state == "FAILURE"
    assert nothing_is_left(desk, TENANT)


def test_what_has_parked_and_not_left_runs_when_its_lease_has_ended(
    desk: Desk, clock: ManualClock, make: Make, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a worker that dies when its message waits for the wide one, and before it leaves
    others = fill(desk, IMPORT, ALL)
    store = runtime(desk.app).backend

    def dies(*_: Any) -> None:
        raise BackendUnavailable("whoever asks is dead")

    make().delay(1)
    with monkeypatch.context() as patch:
        patch.setattr(store, "leave", dies)
        desk.deliver()
    assert len(at(desk, TENANT).holders) == 1

    # When its turn comes while the narrow one is still held for it
    free(desk, others[0])
    desk.deliver_all()
    assert (ran, len(at(desk, IMPORT).grants)) == ([], 1)

    # Then both are its own as soon as the dead one's lease has ended
    clock.advance(60)
    desk.sweep()
    desk.deliver_all()
    assert ran == [1]
    free(desk, *others)
    assert all(nothing_is_left(desk, key) for key in (TENANT, IMPORT))


def test_a_writer_comes_between_readers_that_wait_for_a_limit(
    desk: Desk, make: Make, ran: Ran
) -> None:
    others = fill(desk, IMPORT, ALL)
    load = make()
    for number in range(3):
        load.delay(number)
    desk.deliver_all()

    # Readers that wait do not hold it off, And wait for it in their order
    with lock(CATALOG, app=desk.app, timeout=0):
        free(desk, *others)
        desk.deliver_all()
        assert (ran, nothing_is_left(desk, IMPORT)) == ([], True)
    desk.deliver_all()
    assert ran == [0, 1, 2]


def test_published_in_order_it_takes_its_place_at_the_narrowest(
    desk: Desk, make: Make, ran: Ran
) -> None:
    load = make(on_contention=Queue(ordered="publish"))
    for number in range(5):
        load.delay(number)
    assert (at(desk, TENANT).parked, nothing_is_left(desk, CATALOG)) == (3, True)

    desk.deliver_all()
    assert ran == [0, 1, 2, 3, 4]


def test_the_newest_replaces_who_waits_at_the_narrowest_and_nobody_elsewhere(
    desk: Desk, make: Make, ran: Ran
) -> None:
    load = make(on_contention=Replace())
    tenant, others = fill(desk, TENANT, EACH), fill(desk, IMPORT, ALL)
    sent = [load.delay(1), load.delay(2), load.delay(3, t=8), load.delay(4, t=9)]
    desk.deliver_all()
    free(desk, *tenant, *others)
    desk.deliver_all()

    assert (sorted(ran), sent[0].get()["skipped"]) == ([2, 3, 4], True)


def test_a_block_holds_each_key_in_its_own_way(desk: Desk) -> None:
    wanted = (Shared(CATALOG), "order:42", Limit(IMPORT, ALL), Limit(TENANT, EACH))

    with lock(wanted, app=desk.app, timeout=0) as lease:
        assert lease.keys == (CATALOG, "order:42", TENANT, IMPORT)
        assert list(lease.fencing_tokens) == ["order:42", TENANT, IMPORT]
        assert _elsewhere(desk, Shared(CATALOG), Limit(IMPORT, ALL), Limit(TENANT, EACH))
        assert not _elsewhere(desk, CATALOG)
        assert not _elsewhere(desk, "order:42")
        # Below it, each is there already
        with lock([Limit(TENANT, EACH), Shared(CATALOG)], app=desk.app, timeout=0):
            pass
        with pytest.raises(LockContended), lock(TENANT, app=desk.app, timeout=0):
            pass


def test_a_block_that_is_refused_holds_nothing(desk: Desk) -> None:
    fill(desk, IMPORT, ALL)

    assert not _elsewhere(desk, Limit(TENANT, EACH), Limit(IMPORT, ALL))

    assert nothing_is_left(desk, TENANT)


def test_a_limit_alone_has_a_token_for_its_body(desk: Desk) -> None:
    @desk.locked(Limit("tenant:{t}", EACH), name="alone")
    def alone(t: int, *, fencing_token: int, lease: Lease) -> bool:
        (holder,) = at(desk, TENANT).holders
        return (holder.limit, fencing_token) == (EACH, lease.fencing_token)

    assert alone(7)


def test_each_of_several_keys_has_its_cooldown(desk: Desk, clock: ManualClock) -> None:
    @desk.locked(
        [Limit("fast:{t}", 1, cooldown=10), "order:{t}"], name="slow", on_contention="fail"
    )
    def slow(t: int) -> None: ...

    slow(7)
    assert (len(at(desk, "fast:7").cooling), nothing_is_left(desk, "order:7")) == (1, True)
    with pytest.raises(LockContended, match="is cooling down"):
        slow(7)


def test_one_rendered_key_with_two_limits_is_an_error(desk: Desk) -> None:
    @desk.locked([Limit("account:{source}", 3), "account:{target}"], name="move")
    def move(source: str, target: str) -> None: ...

    move("a", "b")
    with pytest.raises(ConfigurationError, match="'account:a' is given twice"):
        move("a", "a")


def _elsewhere(desk: Desk, *wanted: Any) -> bool:
    """Whether other code than this can have these now."""
    outcome: list[bool] = []

    def take() -> None:
        try:
            with lock(wanted, app=desk.app, timeout=0):
                outcome.append(True)
        except LockContended:
            outcome.append(False)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return outcome[0]
