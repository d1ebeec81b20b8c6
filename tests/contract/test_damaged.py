"""One damaged key costs nobody else anything: neither a lease, nor a sweep, a list or a replay.

Each example sets up two keys alike, writes nonsense into one of them behind the store's back, and
asks everything of both.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from celery_dlock.beat.tick_ledger import noting
from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Cause, KeyState, NotHeld, Outcome, Renewed, Unknown
from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops.dead_letters import DeadLetterEntry
from celery_dlock.ops.overview import Line, look, queue_of
from celery_dlock.ops.urgent import most_urgent
from celery_dlock.registry import open_backend
from celery_dlock.runtime import forget, runtime
from celery_dlock.stores.base import BackendOptions, NoteStore
from celery_dlock.stores.consensus import commit as optimistic_commit
from celery_dlock.stores.consensus import optimistic
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import PLACE, QUEUE, claim, listed_keys, park, running
from tests.contract.storage.dead_letters import die
from tests.services.damage import Contents, contents_of
from tests.services.stores import STORES, Store

BAD, GOOD = "bad:1", "good:1"
LONG = 10_000.0  # seconds; longer than the clock moves until somebody is to lose a lease

#: A Sentinel's master is a Redis as any, and what is in memory nobody else can write.
DAMAGEABLE = [s.param() for s in STORES if s.scheme not in ("memory", "redis+sentinel")]


@dataclass
class Two:
    """A store with two keys, of which one is to be damaged."""

    backend: NoteStore
    clock: ManualClock
    contents: Contents

    def fill(self) -> None:
        for key in (BAD, GOOD):
            die(self.backend, self.clock, f"dead-{key}", key)
        for key in (BAD, GOOD):
            for holder in "hi":
                running(self.backend.enter(_holder(key, holder)))
            park(self.backend, "called", "waits", key=key, limit=2)
            self.backend.enter(claim("comes back", key=key, limit=2, wait=PLACE, patience=LONG))
            self.backend.leave(_holder(key, "i"), Outcome.DONE)
            self.backend.note(key, 1, {"note": b"text"})

    def ask_the_damaged(self, random: Random) -> None:
        """It answers, or says that it cannot, in our own words."""
        for ask in random.sample(self._questions(), 6):
            with suppress(BackendUnavailable):
                ask()

    def _questions(self) -> list[Callable[[], object]]:
        store, key = self.backend, BAD
        new = claim("new", key=key, limit=2)
        return [
            lambda: store.enter(new),
            lambda: store.enter(claim("one more", key=key, limit=2, wait=QUEUE), b"m"),
            lambda: store.enter(claim("called", key=key, limit=2, wait=QUEUE), b"m"),
            lambda: store.leave(_holder(key, "h"), Outcome.OVER),
            lambda: store.leave(_holder(key, "h"), Outcome.REPEAT, b"m"),
            lambda: store.leave(new, Outcome.DONE),
            lambda: store.renew([_holder(key, "h")]),
            lambda: store.reap(key),
            lambda: store.cancel(key, "waits"),
            lambda: store.dead_letter(key, "called", Cause.UNREADABLE),
            lambda: store.hand_back(key, "called"),
            lambda: store.apply(Replay(key, f"dead-{key}")),
            lambda: store.note(key, 2, {"note": b"other"}),
            lambda: store.notes(key),
            lambda: store.peek(key),
            lambda: store.look([key]),
        ]

    def the_other_is_as_before(self) -> None:
        store = self.backend
        _, verdict = store.renew([_holder(BAD, "h"), _holder(GOOD, "h")])
        assert isinstance(verdict, Renewed)
        assert store.notes(GOOD) == {"note": b"text"}
        assert (GOOD, "waits") in store.parked(["waits"])
        for waiting in (False, True):
            keys = listed_keys(store, waiting=waiting)
            assert GOOD in keys
            states = dict(zip(keys, look(store, keys), strict=True))
            for key, state in states.items():
                if isinstance(state, KeyState):
                    Line.of(key, state), queue_of(state)
            there = states[GOOD]
            assert isinstance(there, KeyState)
            assert [holder.task for holder in there.holders] == ["h"]
            assert {grant.task for grant in there.grants} == {"called"}
            assert {entry.task for entry in there.waiting} == {"waits", "comes back"}
        letters = [DeadLetterEntry.of(letter) for letter in store.dead()]
        assert (GOOD, f"dead-{GOOD}") in {(letter.key, letter.task) for letter in letters}

    def the_other_is_called(self) -> None:
        self.clock.advance(700)  # an answer is not waited for longer than that
        called: set[tuple[str, str]] = set()
        for _ in range(3):  # a store looks at no more than so many at a time
            swept = self.backend.sweep(2)
            called |= {(wake.key, wake.task) for wake in swept.wakes}
        assert (GOOD, "called") in called
        assert self.backend.apply(Replay(GOOD, f"dead-{GOOD}")).verdict


def _holder(key: str, task: str) -> Any:
    return claim(task, key=key, ttl=LONG, limit=2)


@contextmanager
def two_keys(store: Store, request: pytest.FixtureRequest, folder: Path) -> Iterator[Two]:
    prefix, clock = f"damaged-{uuid.uuid4().hex}", ManualClock()
    url = store.url(request.getfixturevalue, folder)
    with ExitStack() as stack:
        options = BackendOptions(prefix=prefix, clock=clock)
        backend = stack.enter_context(closing(open_backend(url, options)))
        contents = stack.enter_context(
            contents_of(store.scheme, request.getfixturevalue, folder, prefix)
        )
        two = Two(noting(backend), clock, contents)
        two.fill()
        yield two


@pytest.mark.slow
@pytest.mark.parametrize("store", DAMAGEABLE)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a number has nothing to shrink
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(number=st.integers(0, 2**63))
def test_one_damaged_key_costs_nobody_else_anything(
    store: Store,
    number: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        optimistic_commit, "COMMIT_TIMEOUT", 0.2
    )  # nobody else is there to overtake
    monkeypatch.setattr(optimistic, "REST", 0.0)
    random = Random(number)
    with two_keys(store, request, tmp_path) as two:
        places = two.contents.places(BAD)
        for place in random.sample(places, random.choice((1, 1, 1, 3))):
            two.contents.damage(place, random)
        two.the_other_is_as_before()
        two.ask_the_damaged(random)
        two.the_other_is_as_before()
        two.the_other_is_called()
        two.ask_the_damaged(random)


@pytest.mark.parametrize("store", DAMAGEABLE)
def test_a_lease_that_cannot_be_read_is_unknown_and_the_others_are_renewed(
    store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with two_keys(store, request, tmp_path) as two:
        two.contents.spoil(BAD)
        bad, good = two.backend.renew([_holder(BAD, "h"), _holder(GOOD, "h")])
        assert isinstance(good, Renewed)
        assert isinstance(
            bad, (Unknown, NotHeld)
        )  # of several servers each may say that it is lost


def test_looking_at_a_row_that_cannot_be_read_locks_the_file_for_nobody(tmp_path: Path) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(
        dlock_url=f"sqlite:///{tmp_path / 'locks.db'}", dlock_backend_options={"timeout": 0.0}
    )
    try:
        for key in (BAD, GOOD):
            running(runtime(app).backend.enter(claim("h", key=key, ttl=LONG)))
            park(runtime(app).backend, "waits", "waits too", "and waits", key=key)
        with closing(sqlite3.connect(tmp_path / "locks.db")) as db, db:
            db.execute("UPDATE waiting SET mode='?' WHERE key=?", (BAD,))

        unreadable = [line.key for line in most_urgent(app).lines if line.unreadable]
        assert unreadable == [BAD]
        try:
            runtime(app).backend.look([BAD])
        except BackendUnavailable as exc:
            kept = exc  # and with it all that its traceback knows
            with closing(sqlite3.connect(tmp_path / "locks.db", timeout=0)) as db:
                db.execute("BEGIN IMMEDIATE")
            assert "cannot be read" in str(kept)
    finally:
        forget(app)


@pytest.mark.parametrize("store", DAMAGEABLE)
def test_a_dead_message_that_cannot_be_read_is_named_and_stays_and_others_are_replayed(
    store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with two_keys(store, request, tmp_path) as two:
        two.contents.spoil_dead(BAD, f"dead-{BAD}")
        for _ in range(2):  # asking for it does not take it away
            named = {(letter.key, letter.dead.task): letter.dead for letter in two.backend.dead()}
            assert named[BAD, f"dead-{BAD}"].cause is Cause.UNREADABLE
            with pytest.raises(BackendUnavailable):
                two.backend.apply(Replay(BAD, f"dead-{BAD}"))
        assert two.backend.apply(Replay(GOOD, f"dead-{GOOD}")).verdict
        assert [letter.key for letter in two.backend.dead()] == [BAD]
