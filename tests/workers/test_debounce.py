"""``Debounce``: a call runs when no newer one has come for a while, with the newest arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, group
from celery.signals import after_task_publish, before_task_publish

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
from tests.services.desk import Desk
from tests.services.unique import Make, once_more, without_answer

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("clock")]

KEY = "doc:7"
WAITS_AT = f"{DEBOUNCED}save({KEY})"


@pytest.fixture
def make(desk: Desk) -> Make:
    """``make(does, …)``: a task of a document, whose runs note its text and their ids."""

    def make(does: Callable[[Any], Any] | None = None, **options: Any) -> LockedTask:
        given = {"name": "save", "key": "doc:{doc}", "unique": Debounce(10, 25), **options}

        @desk.locked(bind=True, **given)
        def save(self: Any, text: str, doc: int = 7) -> str:
            desk.ran.append((text, self.request.id))
            return str(does(self) if does else text)

        return save

    return make


def keys(desk: Desk) -> tuple[str, ...]:
    """All that are in use; of a store whose pages may be empty, too."""
    return tuple(sorted(line.key for line in lines_in_use(desk.store)))


# What a caller gets, and what runs.


@pytest.mark.every_store
def test_the_newest_of_a_burst_runs_once_for_all_callers(desk: Desk, make: Make) -> None:
    save = make()
    first, *more = [save.delay(text) for text in "abc"]
    assert {result.id for result in more} == {first.id}
    assert [first.is_duplicate, *(result.is_duplicate for result in more)] == [False, True, True]
    assert desk.size() == 0

    desk.passes(9.999_999)
    assert desk.size() == 0
    desk.passes(0.000_001)

    assert desk.deliver_all() == 1
    assert desk.ran == [("c", first.id)]
    assert (first.get(), more[-1].get()) == ("c", "c")
    assert [event.living for event in desk.happened(Debounced)] == [first.id] * 3
    assert keys(desk) == ()


def test_the_newest_message_goes_out_under_the_first_id(desk: Desk, make: Make) -> None:
    save = make()
    first = save.delay("a")
    save.apply_async(("b",), headers={"of": "the newest"}, priority=3)

    desk.passes(10)
    message = desk.receive()

    headers, properties = message.headers, message.properties
    assert [headers["id"], headers["root_id"], properties["correlation_id"]] == [first.id] * 3
    assert headers[HISTORY]["task"] == f"{first.id}:0:0"
    assert (headers["of"], properties["priority"]) == ("the newest", 3)


def test_celery_tells_of_a_call_only_if_its_task_is_to_run(desk: Desk, make: Make) -> None:
    told: list[str] = []

    def note(headers: dict[str, Any], **_: Any) -> None:
        if headers["task"] == "save":
            told.append(headers["id"])

    @desk.app.task(name="burst", bind=True)
    def burst(self: Any) -> list[str]:
        ids = [save.delay(text).id for text in "abc"]
        assert told == ids[:1]
        return [child.id for child in self.request.children]

    save = make()
    after_task_publish.connect(note)
    result = burst.delay()
    desk.deliver()
    after_task_publish.disconnect(note)

    assert result.get() == told


def test_what_differs_by_its_key_or_by_what_by_says_is_another_call(desk: Desk, make: Make) -> None:
    by_key, by_text = make(), make(name="by text", unique=Debounce(10, 25, by="{text}"))

    calls = [by_key.delay("a", 1), by_key.delay("a", 2), by_key.delay("b", doc=1)]
    assert [call.is_duplicate for call in calls] == [False, False, True]
    calls = [by_text.delay("a"), by_text.delay("b"), by_text.delay("a", 8)]
    assert [call.is_duplicate for call in calls] == [False, False, True]


@pytest.mark.parametrize("policy", ["skip", "fail", "reschedule", Queue(keep=True)], ids=repr)
def test_when_due_it_waits_for_its_key_by_any_policy(desk: Desk, make: Make, policy: Any) -> None:
    save = make(on_contention=policy)
    save.delay("a")
    with lock(KEY, app=desk.app, timeout=0):
        desk.passes(10)
        desk.deliver()
        assert (desk.ran, desk.size(), keys(desk)) == ([], 0, (KEY,))

    desk.deliver_all()

    assert [text for text, _ in desk.ran] == ["a"]
    assert desk.happened(Skipped) == []
    assert keys(desk) == ()


# Calls that are for themselves.


@pytest.mark.parametrize(
    "how", [{"task_id": "mine"}, {"link": "other"}, {"countdown": 60}], ids=repr
)
def test_a_call_with_dependents_is_published(desk: Desk, make: Make, how: dict[str, Any]) -> None:
    @desk.app.task(name="other")
    def other() -> None: ...

    save = make()
    first = save.delay("a")

    options = {name: other.si() if name == "link" else value for name, value in how.items()}
    mine = save.apply_async(("b",), **options)

    assert (desk.size(), mine.id != first.id) == (1, True)
    assert save.delay("c").id == first.id


def test_members_of_a_canvas_run_at_once_and_each(desk: Desk, make: Make) -> None:
    save = make()
    first = save.delay("a")

    group(save.s("b"), save.s("c")).apply_async()
    chain(save.si("d"), save.si("e")).apply_async()

    desk.deliver_all()
    assert sorted(text for text, _ in desk.ran) == ["b", "c", "d", "e"]
    desk.passes(10)
    desk.deliver_all()
    assert desk.ran[-1] == ("a", first.id)


def test_a_retry_is_not_debounced(desk: Desk, make: Make) -> None:
    save = make(once_more)
    first = save.delay("a")
    desk.passes(10)

    assert desk.deliver_all() == 2
    assert desk.ran == [("a", first.id)] * 2
    assert keys(desk) == ()


def test_a_plain_call_an_eager_one_and_one_by_its_name_run_at_once(desk: Desk, make: Make) -> None:
    save = make()

    save("a")
    save.apply(("b",))
    desk.app.send_task("save", ("by its name",))
    desk.deliver_all()
    desk.app.conf.task_always_eager = True
    save.delay("c")

    assert [text for text, _ in desk.ran] == ["a", "b", "by its name", "c"]
    assert keys(desk) == ()


# Trouble.


def test_without_an_answer_of_the_store_it_is_published_with_its_delay(
    desk: Desk, make: Make
) -> None:
    asked = []

    def gone(*_: Any) -> None:
        asked.append(1)
        raise BackendUnavailable("no answer")

    save = make()
    with desk.patch.context() as patch:
        patch.setattr(desk.store, "postpone", gone)
        result = save.delay("a")

    message = desk.receive()
    assert message.headers["id"] == result.id
    assert message.headers["eta"] is not None
    assert (len(asked), len(desk.happened(Unavailable)), result.is_duplicate) == (1, 1, False)


@pytest.mark.parametrize(("delay", "waits"), [(0.4, 1), (3.7, 3)])
def test_rabbitmq_waits_for_a_second_at_least(
    desk: Desk, make: Make, delay: float, waits: int
) -> None:
    """With quorum queues; for less Celery raises an error."""
    keys: list[str] = []

    def note(routing_key: str, **_: Any) -> None:
        keys.append(routing_key)

    desk.app.conf.task_default_exchange_type = "topic"
    save = make(unique=Debounce(delay, delay))
    for module in ("celery.app.base", "celery_dlock.messages.countdown"):
        desk.patch.setattr(f"{module}.detect_quorum_queues", lambda *_: (True, "celery"))
    desk.patch.setattr(desk.store, "largest_message", 1)
    before_task_publish.connect(note)
    save.delay("a")
    before_task_publish.disconnect(note)

    assert keys[-1] == ".".join(f"{waits:028b}") + ".celery"


@pytest.mark.parametrize("landed", [True, False])
def test_what_went_by_the_broker_does_not_run_in_place_of_a_newer_call(
    desk: Desk, make: Make, landed: bool
) -> None:
    """Of the older one nobody knows whether the store has it."""
    backend = desk.store
    save = make()
    with desk.patch.context() as patch:
        patch.setattr(backend, "postpone", without_answer(backend.postpone if landed else None))
        older = save.delay("a")
    by_broker = desk.receive()
    newer = save.delay("b")
    desk.run(by_broker)
    desk.passes(10)

    desk.deliver_all()
    assert desk.ran == [("a", older.id)] * (not landed) + [("b", newer.id)]
    assert (newer.id == older.id) is landed
    assert keys(desk) == ()


def test_so_is_one_that_is_too_large_for_the_store(desk: Desk, make: Make) -> None:
    save = make()
    desk.patch.setattr(desk.store, "largest_message", 2_000)

    save.delay("a" * 2_000)

    message = desk.receive()
    assert message.headers["eta"] is not None
    assert len(desk.happened(TooLarge)) == 1


def test_one_that_dies_between_its_two_keys_has_a_copy_that_is_dropped(
    desk: Desk, make: Make
) -> None:
    save = make()
    save.delay("a")
    with lock(KEY, app=desk.app, timeout=0):
        desk.passes(10)
        with desk.patch.context() as patch:  # it dies between the two
            patch.setattr(runtime(desk.app).manager, "take_back", lambda *_: False)
            desk.deliver()
        assert keys(desk) == (WAITS_AT, KEY)
        desk.passes(5)
        assert desk.deliver_all() == 1  # a copy, which gives the turn back
        assert keys(desk) == (KEY,)

    desk.deliver_all()

    assert [text for text, _ in desk.ran] == ["a"]
    assert keys(desk) == ()


@pytest.mark.parametrize("woken", [False, True])
def test_an_operator_ends_it_at_any_time(desk: Desk, make: Make, woken: bool) -> None:
    save = make()
    first = save.delay("a")
    if woken:
        desk.passes(10)
    here = runtime(desk.app)
    ((key, task),) = here.backend.parked([first.id])
    assert key == WAITS_AT

    here.wake(here.backend.cancel(key, task).wakes)
    second = save.delay("b")  # the next call has nothing to do with it

    desk.deliver_all()
    assert desk.ran == []
    assert first.status == "REVOKED"
    assert not second.is_duplicate
    desk.passes(10)
    desk.deliver_all()
    assert desk.ran == [("b", second.id)]
    assert keys(desk) == ()


def test_one_operation_a_call_and_one_message_for_all(desk: Desk, make: Make) -> None:
    save, backend, asked = make(), desk.store, []
    apply = backend.apply

    def counted(operation: Any) -> Any:
        asked.append(operation)
        return apply(operation)

    desk.patch.setattr(backend, "apply", counted)
    for number in range(100):
        save.delay(number)

    assert (len(asked), desk.size()) == (100, 0)
    desk.passes(10)
    assert desk.deliver_all() == 1
    assert [text for text, _ in desk.ran] == [99]


def test_arguments_that_give_no_key_are_an_error_of_the_call(desk: Desk, make: Make) -> None:
    save = make(key="doc:{doc.id}")

    with pytest.raises(ConfigurationError, match="lock key"):
        save.delay("a")

    assert desk.size() == 0
