"""What is said of a task, by who can be asked, and that no one's silence is passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_dlock import ConfigurationError, Lease, Limit, LockedTask, Shared, lock
from celery_dlock.core import turns
from celery_dlock.core.events import Lost, Subject
from celery_dlock.core.state import WINDOW, Cause, Claim, Dead, Mode
from celery_dlock.monitoring import batching
from celery_dlock.monitoring.history import HistorySink
from celery_dlock.ops import actions, facts, overview
from celery_dlock.ops.event_text import Clock, describe
from celery_dlock.ops.explain import Answer, State, explain
from celery_dlock.ops.explain_key import explain_key
from celery_dlock.ops.facts import StoreFacts, store_facts
from celery_dlock.policies import Contention, Decision, RunLater
from celery_dlock.runtime import forget, runtime
from celery_dlock.stores.base import DeadMessage
from tests.services.desk import Desk, open_desk
from tests.services.redis import RedisServer

KEY = "order:42"

Open = Callable[..., Desk]


@pytest.fixture
def open_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens a desk, with a history unless that is said to be ``None``."""
    monkeypatch.setattr(HistorySink, "exit_timeout", 60.0)
    with ExitStack() as stack:

        def open_one(**config: Any) -> Desk:
            config = {"dlock_history": f"sqlite:///{tmp_path / 'history.db'}", **config}
            made = stack.enter_context(open_desk(**config))
            stack.callback(forget, made.app)
            return made

        yield open_one
        batching.end()


def task(
    desk: Desk, policy: Any, name: str = "charge", key: Any = "order:{order}", **options: Any
) -> LockedTask:
    @desk.locked(key, name=name, on_contention=policy, **options)
    def charge(order: str) -> str:
        return order

    return charge


def ask(desk: Desk, task_id: str) -> Answer:
    batching.end()
    return explain(desk.app, task_id)


def says(answer: Answer, what: str) -> bool:
    return any(what in sentence for sentence in (*answer.sentences, *answer.gaps))


def test_who_waits_for_a_limit_is_not_told_to_be_woken(open_one: Open) -> None:
    desk = open_one()
    keys = [Limit("tenant:{order}", 2), Limit("all", 3)]

    @desk.locked(keys, name="load", on_contention="queue")
    def load(order: str) -> None: ...

    slots = [("tenant:7", 2), ("all", 3)]
    others = [
        Claim(key, f"other-{number}:0:0", "n", ttl=10**9, mode=Mode.LIMITED, limit=limit)
        for key, limit in slots
        for number in range(limit)
    ]
    for claim in others:
        runtime(desk.app).backend.enter(claim)
    waits = load.delay("7")
    desk.deliver()
    runtime(desk.app).manager.take_back(others[:2])
    desk.deliver()

    answer = ask(desk, waits.id)
    assert (answer.state, answer.keys) == (State.WAITING, ("all",))
    assert says(answer, "'tenant:7' is reserved for it until ")
    assert says_of(desk, "tenant:7", f"a turn is reserved for {waits.id}, to come back by itself")
    line = overview.line(desk.app, "tenant:7")
    assert (line.woken, line.reserved, line.is_idle) == ((), (waits.id,), False)


def says_of(desk: Desk, key: str, what: str) -> bool:
    return any(what in sentence for sentence in explain_key(desk.app, key).sentences)


@pytest.mark.parametrize("kept", [True, False], ids=["with a history", "without"])
@pytest.mark.parametrize("results", [True, False], ids=["with results", "without"])
def test_it_says_what_it_can(open_one: Open, kept: bool, results: bool) -> None:
    without: dict[str, Any] = {} if kept else {"dlock_history": None}
    desk = open_one(**without, **({} if results else {"result_backend": None}))
    charge, skips = task(desk, "queue"), task(desk, "skip", "skips")

    waits, skipped = charge.delay("42"), skips.delay("42")
    with lock(KEY, app=desk.app, timeout=0) as lease:
        desk.deliver()
        desk.deliver()

        waiting = ask(desk, waits.id)
        assert waiting.state is State.WAITING
        assert f"with token {lease.fencing_token}; its place is 1st of 1" in waiting.sentences[0]
        assert not says(waiting, "dlock_history is not set")

        answer = ask(desk, skipped.id)
        assert answer.state is (State.SKIPPED if kept or results else State.UNKNOWN)
        assert says(answer, "was skipped") == (kept or results)
        assert says(answer, "dlock_history is not set") == (not kept)
        assert says(answer, "result_backend") == (not results)
    desk.deliver()
    assert (ask(desk, waits.id).state is State.DONE) == (kept or results)


def test_of_a_task_nobody_knows_it_says_where_it_may_be(open_one: Open) -> None:
    answer = ask(open_one(), "nobody")
    assert (answer.state, answer.task_name, answer.entries) == (State.UNKNOWN, None, ())
    assert "may wait in the broker" in answer.sentences[0]


@pytest.mark.server("redis")
def test_an_unavailable_store_is_named(open_one: Open, own_redis_server: RedisServer) -> None:
    desk = open_one(dlock_url=own_redis_server.url)
    waits = task(desk, "queue").delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        batching.end()
        holder = explain_key(desk.app, KEY).entries[0].task_id

        own_redis_server.kill()

        for task_id, state in ((waits.id, State.WAITING), (holder, State.RUNNING)):
            answer = ask(desk, task_id)
            assert answer.state is state
            assert says(answer, "the lock store did not answer")
        key = explain_key(desk.app, KEY)
        assert key.line is None
        assert "the lock store did not answer" in key.sentences[0]
        assert key.entries


def test_an_unavailable_history_is_named(open_one: Open, tmp_path: Path) -> None:
    away = f"sqlite:///{tmp_path / 'nowhere' / 'history.db'}"
    desk = open_one(dlock_history=away, result_backend="redis://127.0.0.1:1")
    answer = explain(desk.app, "nobody")
    assert answer.state is State.UNKNOWN
    assert says(answer, "the result backend did not answer")
    assert says(answer, "the history is unavailable")
    assert "the history is unavailable" in explain_key(desk.app, KEY).sentences[-1]


def test_results_over_rpc_are_not_asked_for(open_one: Open) -> None:
    assert says(explain(open_one(result_backend="rpc://").app, "nobody"), "go back over rpc://")


def test_one_whose_turn_has_come_and_one_that_is_woken_to_end(open_one: Open) -> None:
    desk = open_one()
    charge = task(desk, "queue")
    first, second = charge.delay("42"), charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()
        (cancel,) = actions.cancels(desk.app, second.id)
        assert cancel.carry_out("somebody")

        ends = ask(desk, second.id)
        assert ends.state is State.WOKEN
        assert "to end: revoked" in ends.sentences[0]

    called = ask(desk, first.id)
    assert called.state is State.WOKEN
    assert f"its turn for {KEY!r} has come" in called.sentences[0]
    assert "no worker has taken it yet" in called.sentences[0]
    assert "times" not in called.sentences[0]


def test_one_woken_in_vain_says_how_often(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WAKE_AGAIN_FIRST", 0)
    desk = open_one()
    waits = task(desk, "queue").delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
    backend = runtime(desk.app).backend
    backend.reap(KEY)
    (grant,) = backend.peek(KEY).grants
    assert grant.woken > 1

    said = ask(desk, waits.id).sentences[0]
    assert f"no worker has taken it yet, although it was woken {grant.woken} times" in said


def test_one_that_keeps_its_turn_says_why_a_worker_has_put_it_off(open_one: Open) -> None:
    desk, limits = open_one(dlock_history=None), [2]

    def at_once(order: str) -> int:
        return limits[0]

    waits = task(desk, "queue", key=Limit("order:{order}", at_once)).delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
    limits.clear()
    desk.deliver()

    answer = ask(desk, waits.id)
    assert answer.state is State.WOKEN
    assert says(answer, "what at_once() says for 'order:42' is not known: it raised IndexError")


class MuchLater:
    """It comes back, and has no place kept for it meanwhile."""

    def decide(self, contention: Contention) -> Decision:
        return RunLater(600.0)


def test_one_that_comes_back_by_itself_says_how_often_and_when(open_one: Open) -> None:
    desk = open_one()
    later = task(desk, MuchLater()).delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()
        holder = explain_key(desk.app, KEY).line
    assert holder is not None

    answer = ask(desk, later.id)

    assert answer.state is State.RESCHEDULED
    assert answer.sentences[0].startswith("was rescheduled 2 times, last at ")
    assert answer.sentences[1].startswith("its next try is in at most ")
    assert (answer.keys, answer.tasks) == ((KEY,), (holder.holders[0].task_id,))


def test_without_a_history_celery_knows_that_it_was_rescheduled(open_one: Open) -> None:
    desk = open_one(dlock_history=None)
    later = task(desk, MuchLater()).delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()

        answer = ask(desk, later.id)

    assert answer.state is State.RESCHEDULED
    assert f"{KEY!r} is held by lock()" in answer.sentences[0]


def test_one_that_a_worker_has_started_and_that_holds_no_lock_may_be_gone(open_one: Open) -> None:
    desk = open_one()
    desk.app.backend.mark_as_started("one")

    answer = ask(desk, "one")

    assert answer.state is State.RUNNING
    assert answer.sentences == (
        "was started by a worker and holds no lock: it may ask for it, or its worker is gone",
    )


def test_a_copy_that_was_dropped_is_told_of_though_no_results_are_kept(open_one: Open) -> None:
    desk = open_one(result_backend=None)
    charge = task(desk, "queue")
    first = charge.delay("42")
    desk.deliver()
    charge.apply_async(("42",), task_id=first.id)
    desk.deliver()

    answer = ask(desk, first.id)

    assert answer.state is State.DONE
    assert f"released {KEY!r} after" in answer.sentences[0]
    assert "had a duplicate dropped at" in answer.sentences[1]
    assert f"{first.id} is already done" in answer.sentences[1]


def test_a_place_far_behind_is_told_exactly(open_one: Open) -> None:
    desk = open_one()
    charge = task(desk, "queue")
    sent = [charge.delay("42") for _ in range(WINDOW + 9)]
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver_all()

        last = ask(desk, sent[-1].id)
        key = explain_key(desk.app, KEY, limit=3)

    assert f"its place is {WINDOW + 9}st of {WINDOW + 9}" in last.sentences[0]
    assert [line.task_id for line in key.queue] == [result.id for result in sent[:3]]
    assert key.line is not None
    assert key.line.waiting == WINDOW + 9


def test_several_holders_are_all_named(open_one: Open) -> None:
    desk = open_one()
    waits = task(desk, "queue").delay("42")
    with lock(Shared(KEY), app=desk.app, timeout=0):
        store = runtime(desk.app).backend
        store.enter(Claim(KEY, "reader:0:0", "1", ttl=10**9, mode=Mode.SHARED))
        desk.deliver()

        answer = ask(desk, waits.id)

    assert len(answer.tasks) == 2
    assert "reader" in answer.tasks
    assert "which hold it; its place is 1st of 1" in answer.sentences[0]


def test_one_that_runs_is_found_though_nothing_says_where(open_one: Open) -> None:
    desk = open_one(dlock_history=None)
    for number in range(3):
        claim = Claim(f"order:{number}", f"task-{number}:0:0", "1", ttl=10**9)
        runtime(desk.app).backend.enter(claim)

    answer = ask(desk, "task-1")

    assert (answer.state, answer.keys) == (State.RUNNING, ("order:1",))


def test_a_lease_that_has_ended_is_no_run(open_one: Open) -> None:
    desk = open_one()
    runtime(desk.app).backend.enter(Claim(KEY, "gone:0:0", "1", ttl=1))

    answer, of_key = ask(desk, "gone"), explain_key(desk.app, KEY).sentences[0]

    assert answer.state is State.UNKNOWN
    assert f"held {KEY!r} with token" in answer.sentences[0]
    assert "did not release it: its worker is gone or cut off" in answer.sentences[0]
    assert of_key.startswith("gone held it from ")
    assert "until its lease expired at" in of_key


@pytest.mark.parametrize("policy", ["queue", "skip"])
def test_what_somebody_sends_is_told_as_it_is(open_one: Open, policy: str) -> None:
    desk = open_one()
    hostile = "../<script>alert(1)</script>\n'\"{{x}}"
    charge = task(desk, policy)
    charge.apply_async((hostile,), task_id=hostile)
    (key,) = charge.lock_definition.keys((hostile,), {}).own
    with lock(key, app=desk.app, timeout=0):
        desk.deliver()

        answer = ask(desk, hostile)
        assert explain_key(desk.app, key).key == key

    assert answer.task_id == hostile
    assert answer.state is (State.WAITING if policy == "queue" else State.SKIPPED)
    assert all(type(sentence) is str for sentence in answer.sentences)


def test_a_key_that_is_free_and_a_name_that_is_none(open_one: Open) -> None:
    desk = open_one()
    free = explain_key(desk.app, KEY)
    assert (free.sentences, free.queue, free.entries) == (("nobody holds it",), (), ())
    with pytest.raises(ConfigurationError, match="must not be empty"):
        explain_key(desk.app, "")


def test_one_that_ends_while_it_is_asked_after_is_done(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_one()
    result = task(desk, "queue").delay("42")

    def ends(*given: Any, **options: Any) -> StoreFacts:
        desk.deliver()
        return store_facts(*given, **options)

    monkeypatch.setattr(facts, "store_facts", ends)

    assert explain(desk.app, result.id).state is State.DONE


@pytest.mark.parametrize(
    ("cause", "state"), [(Cause.UNREADABLE, State.DONE), (Cause.RUNS_LOST, State.DEAD)]
)
def test_one_that_has_run_by_a_copy_of_its_dead_message_is_done(
    open_one: Open, monkeypatch: pytest.MonkeyPatch, cause: Cause, state: State
) -> None:
    desk = open_one()
    result = task(desk, "queue").delay("42")
    desk.deliver()
    letter = DeadMessage(KEY, Dead(f"{result.id}:0:0", Mode.EXCLUSIVE, cause, 1_000_000), b"m")
    monkeypatch.setattr(runtime(desk.app).backend, "dead_of", lambda _: [letter])

    assert explain(desk.app, result.id).state is state


def test_one_whose_lock_was_taken_away_may_run_on(open_one: Open) -> None:
    desk = open_one()
    sink = HistorySink.from_app(desk.app)
    sink(Lost(Subject("freed", "charge", "order:{order}"), KEY, "the store has given it up"))
    sink.flush(60)

    answer = explain(desk.app, "freed")

    assert answer.state is State.UNKNOWN
    lost, hint = answer.sentences
    assert lost.endswith(f"lost its lock on {KEY!r}: the store has given it up")
    assert "its body may still run without the lock" in hint


def test_each_key_has_its_token_and_a_read_parent_has_none(open_one: Open) -> None:
    desk = open_one()
    tokens: dict[str, int] = {}

    @desk.locked(["order:{order}", "stock:{order}", Shared("all")], name="charge")
    def charge(order: str, *, lease: Lease) -> None:
        tokens.update(lease.fencing_tokens)

    result = charge.delay("42")
    desk.deliver()
    with lock(["order:42", Shared("all")], app=desk.app) as lease:
        batching.end()

        key = explain_key(desk.app, "order:42")
        assert [(e.event, e.token) for e in key.entries] == [
            ("Acquired", tokens["order:42"]),
            ("Released", None),
            ("Acquired", lease.fencing_token),
        ]
        assert [e.task_id for e in key.entries[:2]] == [result.id, result.id]
        words = describe(key.entries[0], Clock.of(desk.app))
        assert words.endswith(f"took 'order:42' with token {tokens['order:42']}")

        (stock,) = [e for e in explain_key(desk.app, "stock:42").entries if e.token]
        assert stock.token == tokens["stock:42"]
        assert {e.token for e in explain_key(desk.app, "all").entries} == {None}


def test_a_configuration_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="dlock_url is not set"):
        explain(Celery("nothing", set_as_current=False), "id")
