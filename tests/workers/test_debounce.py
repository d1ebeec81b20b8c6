"""``Debounce``: a call runs when no newer one has come for a while, with the newest arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, group
from celery.signals import before_task_publish

from celery_dlock import (
    BackendUnavailable,
    ConfigurationError,
    Debounce,
    LockedTask,
    Queue,
    lock,
)
from celery_dlock.core.debounce import DEBOUNCED
from celery_dlock.core.events import Debounced, Skipped, TooLarge, Unavailable
from celery_dlock.messages.headers import HISTORY
from celery_dlock.ops.overview import lines_in_use
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.unique import without_answer

pytestmark = pytest.mark.stores

KEY = "doc:7"
WAITS_AT = f"{DEBOUNCED}save({KEY})"
Runs = list[Any]
Make = Callable[..., LockedTask]


@pytest.fixture
def runs() -> Runs:
    """Which texts the bodies were called with, and as which task."""
    return []


@pytest.fixture
def make(desk: Desk, clock: ManualClock, runs: Runs) -> Make:
    """``make(…)``: a debounced task; *does* is called in its body."""

    def make(does: Callable[[Any], Any] | None = None, **options: Any) -> LockedTask:
        given = {"name": "save", "key": "doc:{doc}", "unique": Debounce(10, 25), **options}

        @desk.locked(bind=True, **given)
        def save(self: Any, text: str, doc: int = 7) -> str:
            runs.append((text, self.request.id))
            return str(does(self) if does else text)

        return save

    return make


def passes(desk: Desk, clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    desk.sweep()


def keys(desk: Desk) -> tuple[str, ...]:
    """All that are in use; of a store whose pages may be empty, too."""
    return tuple(sorted(line.key for line in lines_in_use(runtime(desk.app).backend)))


# What a caller gets, and what runs.


@pytest.mark.every_store
def test_the_newest_of_a_burst_runs_once_and_all_callers_hold_its_result(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs
) -> None:
    save = make()
    first, *more = [save.delay(text) for text in "abc"]
    assert {result.id for result in more} == {first.id}
    assert [first.is_duplicate, *(result.is_duplicate for result in more)] == [False, True, True]
    assert desk.size() == 0

    passes(desk, clock, 9.999_999)
    assert desk.size() == 0
    passes(desk, clock, 0.000_001)

    assert desk.deliver_all() == 1
    assert runs == [("c", first.id)]
    assert (first.get(), more[-1].get()) == ("c", "c")
    assert [event.living for event in desk.happened(Debounced)] == [first.id] * 3
    assert keys(desk) == ()


def test_each_call_puts_it_off_but_not_for_ever(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs
) -> None:
    save = make()
    for text in "abc":
        save.delay(text)
        passes(desk, clock, 8)
    assert desk.size() == 0

    passes(desk, clock, 1)

    desk.deliver_all()
    assert [text for text, _ in runs] == ["c"]


def test_once_it_is_woken_the_next_call_waits_anew(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs
) -> None:
    save = make()
    first = save.delay("a")
    passes(desk, clock, 10)
    assert desk.size() == 1

    second = save.delay("b")

    assert (second.is_duplicate, second.id != first.id) == (False, True)
    passes(desk, clock, 4.9)
    desk.deliver_all()
    passes(desk, clock, 10)
    desk.deliver_all()
    assert runs == [("a", first.id), ("b", second.id)]
    assert keys(desk) == ()


def test_the_message_of_the_newest_call_goes_out_under_the_id_of_the_first(
    desk: Desk, clock: ManualClock, make: Make
) -> None:
    save = make()
    first = save.delay("a")
    save.apply_async(("b",), headers={"of": "the newest"}, priority=3)

    passes(desk, clock, 10)
    message = desk.take()

    assert message is not None
    headers, properties = message.headers, message.properties
    assert [headers["id"], headers["root_id"], properties["correlation_id"]] == [first.id] * 3
    assert headers[HISTORY]["task"] == f"{first.id}:0:0"
    assert (headers["of"], properties["priority"]) == ("the newest", 3)


@pytest.mark.parametrize("how", ["task", "call"])
def test_nobody_waits_for_a_result_that_is_not_kept(desk: Desk, make: Make, how: str) -> None:
    save = make(ignore_result=how == "task")
    options: dict[str, Any] = {"ignore_result": True} if how == "call" else {}

    first, merged = (save.apply_async((text,), **options) for text in "ab")

    assert merged.is_duplicate
    assert (first.get(timeout=10), merged.get(timeout=10)) == (None, None)


def test_what_differs_by_its_key_is_another_call(desk: Desk, make: Make) -> None:
    save = make()

    assert not save.delay("a", 1).is_duplicate
    assert not save.delay("a", 2).is_duplicate
    assert save.delay("b", doc=1).is_duplicate


def test_or_by_what_by_says_and_never_by_what_another_task_does(desk: Desk, make: Make) -> None:
    save = make(unique=Debounce(10, 25, by="{text}"))
    index = make(name="index")

    assert not save.delay("a").is_duplicate
    assert not save.delay("b").is_duplicate
    assert save.delay("a", 8).is_duplicate
    assert not index.delay("a").is_duplicate


@pytest.mark.parametrize("policy", ["skip", "fail", "reschedule", Queue(keep=True)], ids=repr)
def test_when_it_is_due_it_waits_for_its_key_whatever_the_policy_is(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs, policy: Any
) -> None:
    save = make(on_contention=policy)
    save.delay("a")
    with lock(KEY, app=desk.app, timeout=0):
        passes(desk, clock, 10)
        desk.deliver()
        assert (runs, desk.size(), keys(desk)) == ([], 0, (KEY,))

    desk.deliver_all()

    assert [text for text, _ in runs] == ["a"]
    assert desk.happened(Skipped) == []
    assert keys(desk) == ()


# Calls that are for themselves.


@pytest.mark.parametrize(
    "how", [{"task_id": "mine"}, {"link": "other"}, {"countdown": 60}], ids=repr
)
def test_a_call_that_somebody_depends_on_or_that_says_when_is_published_as_it_is(
    desk: Desk, make: Make, how: dict[str, Any]
) -> None:
    @desk.app.task(name="other")
    def other() -> None: ...

    save = make()
    first = save.delay("a")

    options = {name: other.si() if name == "link" else value for name, value in how.items()}
    mine = save.apply_async(("b",), **options)

    assert (desk.size(), mine.id != first.id) == (1, True)
    assert save.delay("c").id == first.id


def test_members_of_a_canvas_run_at_once_and_each(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs
) -> None:
    save = make()
    first = save.delay("a")

    group(save.s("b"), save.s("c")).apply_async()
    chain(save.si("d"), save.si("e")).apply_async()

    desk.deliver_all()
    assert sorted(text for text, _ in runs) == ["b", "c", "d", "e"]
    passes(desk, clock, 10)
    desk.deliver_all()
    assert runs[-1] == ("a", first.id)


def test_a_retry_is_not_debounced(desk: Desk, clock: ManualClock, make: Make, runs: Runs) -> None:
    def once_more(task: Any) -> None:
        if not task.request.retries:
            raise task.retry(countdown=0)

    save = make(once_more)
    first = save.delay("a")
    passes(desk, clock, 10)

    assert desk.deliver_all() == 2
    assert runs == [("a", first.id)] * 2
    assert keys(desk) == ()


def test_a_plain_call_and_an_eager_one_run_at_once(desk: Desk, make: Make, runs: Runs) -> None:
    save = make()

    save("a")
    save.apply(("b",))
    desk.app.conf.task_always_eager = True
    save.delay("c")

    assert [text for text, _ in runs] == ["a", "b", "c"]
    assert keys(desk) == ()


# Trouble.


def test_without_an_answer_of_the_store_it_is_published_with_its_delay(
    desk: Desk, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def gone(*_: Any) -> None:
        asked.append(1)
        raise BackendUnavailable("no answer")

    save = make()
    with monkeypatch.context() as patch:
        patch.setattr(runtime(desk.app).backend, "postpone", gone)
        result = save.delay("a")

    message = desk.take()
    assert message is not None
    assert message.headers["id"] == result.id
    assert message.headers["eta"] is not None
    assert (len(asked), len(desk.happened(Unavailable)), result.is_duplicate) == (1, 1, False)


@pytest.mark.parametrize(("delay", "waits"), [(0.4, 1), (3.7, 3)])
def test_rabbitmq_waits_for_a_second_at_least(
    desk: Desk, make: Make, monkeypatch: pytest.MonkeyPatch, delay: float, waits: int
) -> None:
    """With quorum queues; for less Celery raises an error."""
    keys: list[str] = []

    def note(routing_key: str, **_: Any) -> None:
        keys.append(routing_key)

    desk.app.conf.task_default_exchange_type = "topic"
    save = make(unique=Debounce(delay, delay))
    for module in ("celery.app.base", "celery_dlock.messages.countdown"):
        monkeypatch.setattr(f"{module}.detect_quorum_queues", lambda *_: (True, "celery"))
    monkeypatch.setattr(runtime(desk.app).backend, "largest_message", 1)
    before_task_publish.connect(note)
    save.delay("a")
    before_task_publish.disconnect(note)

    assert keys[-1] == ".".join(f"{waits:028b}") + ".celery"


@pytest.mark.parametrize("landed", [True, False])
def test_what_went_by_the_broker_does_not_run_in_place_of_a_newer_call(
    desk: Desk,
    clock: ManualClock,
    make: Make,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    landed: bool,
) -> None:
    """Of the older one nobody knows whether the store has it."""
    backend = runtime(desk.app).backend
    save = make()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "postpone", without_answer(backend.postpone if landed else None))
        older = save.delay("a")
    by_broker = desk.take()
    assert by_broker is not None
    newer = save.delay("b")
    desk.run(by_broker)
    passes(desk, clock, 10)

    desk.deliver_all()
    assert runs == [("a", older.id)] * (not landed) + [("b", newer.id)]
    assert (newer.id == older.id) is landed
    assert keys(desk) == ()


def test_so_is_one_that_is_too_large_for_the_store(
    desk: Desk, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = make()
    monkeypatch.setattr(runtime(desk.app).backend, "largest_message", 2_000)

    save.delay("a" * 2_000)

    message = desk.take()
    assert message is not None
    assert message.headers["eta"] is not None
    assert len(desk.happened(TooLarge)) == 1


@pytest.mark.parametrize("acks_late", [True, False])
def test_whoever_dies_before_its_key_has_answered_loses_nothing(
    desk: Desk,
    clock: ManualClock,
    make: Make,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    acks_late: bool,
) -> None:
    """Not even where the broker has forgotten the message: the store has it until then."""
    save = make(acks_late=acks_late)
    first = save.delay("a")
    passes(desk, clock, 10)
    message = desk.take()
    assert message is not None
    message.ack()  # type: ignore[no-untyped-call]  # and the worker is gone

    passes(desk, clock, 5)

    assert desk.deliver_all() == 1
    assert runs == [("a", first.id)]
    assert keys(desk) == ()


def test_one_that_dies_between_its_two_keys_has_a_copy_that_is_dropped(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = make()
    save.delay("a")
    with lock(KEY, app=desk.app, timeout=0):
        passes(desk, clock, 10)
        with monkeypatch.context() as patch:  # it dies between the two
            patch.setattr(runtime(desk.app).manager, "take_back", lambda *_: False)
            desk.deliver()
        assert keys(desk) == (WAITS_AT, KEY)
        passes(desk, clock, 5)
        assert desk.deliver_all() == 1  # a copy, which gives the turn back
        assert keys(desk) == (KEY,)

    desk.deliver_all()

    assert [text for text, _ in runs] == ["a"]
    assert keys(desk) == ()


def test_a_copy_of_what_has_run_does_not_run_again(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs
) -> None:
    make().delay("a")
    passes(desk, clock, 10)
    passes(desk, clock, 5)

    assert desk.deliver_all() == 2
    assert [text for text, _ in runs] == ["a"]
    assert keys(desk) == ()


@pytest.mark.parametrize("woken", [False, True])
def test_an_operator_ends_it_before_it_is_due_and_when_it_was_woken(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs, woken: bool
) -> None:
    save = make()
    first = save.delay("a")
    if woken:
        passes(desk, clock, 10)
    here = runtime(desk.app)
    ((key, task),) = here.backend.parked([first.id])
    assert key == WAITS_AT

    here.wake(here.backend.cancel(key, task).wakes)
    second = save.delay("b")  # the next call has nothing to do with it

    desk.deliver_all()
    assert runs == []
    assert first.status == "REVOKED"
    assert not second.is_duplicate
    passes(desk, clock, 10)
    desk.deliver_all()
    assert runs == [("b", second.id)]
    assert keys(desk) == ()


def test_what_was_sent_by_its_name_alone_is_not_debounced(
    desk: Desk, make: Make, runs: Runs
) -> None:
    make()
    desk.app.send_task("save", ("a",))

    desk.deliver_all()

    assert [text for text, _ in runs] == ["a"]


def test_one_operation_a_call_and_one_message_for_all(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, backend, asked = make(), runtime(desk.app).backend, []
    apply = backend.apply

    def counted(operation: Any) -> Any:
        asked.append(operation)
        return apply(operation)

    monkeypatch.setattr(backend, "apply", counted)
    for number in range(100):
        save.delay(number)

    assert (len(asked), desk.size()) == (100, 0)
    passes(desk, clock, 10)
    assert desk.deliver_all() == 1
    assert [text for text, _ in runs] == [99]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: {"unique": Debounce(0, 5)}, "delay must be"),
        (lambda: {"unique": Debounce(5, 4)}, "max_delay=4 of a debounced task is shorter"),
        (lambda: {"key": None}, "all calls lock the task's name: say by="),
        (lambda: {"key": ["a:{doc}", "b:{doc}"]}, "only if the task locks one key"),
        (lambda: {"unique": Debounce(1, 2, by="{nobody}")}, "no parameter 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_refused_as_it_is_defined(
    make: Make, wrong: Callable[[], dict[str, Any]], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make(**wrong())


def test_arguments_that_give_no_key_are_an_error_of_the_call(desk: Desk, make: Make) -> None:
    save = make(key="doc:{doc.id}")

    with pytest.raises(ConfigurationError, match="lock key"):
        save.delay("a")

    assert desk.size() == 0
