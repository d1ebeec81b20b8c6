"""Two connections, any interleaving: what is committed is what a simple picture of it says.

A statement that has to wait for the other transaction stays under way until that has ended; only
then is it said what it must answer. Nothing depends on how fast anybody is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_dlock import StaleFencingToken, fencing
from tests.fencing.clients import open_client
from tests.fencing.conftest import Database
from tests.fencing.faces import servers
from tests.fencing.leases import lease, term
from tests.fencing.test_waiting import WAITING

WHO = st.sampled_from([0, 1])
RESOURCES = st.sampled_from(["one", "two"])
OWNERS = st.sampled_from(["a", "b"])
TOKENS = st.integers(min_value=1, max_value=4)


@dataclass
class Picture:
    """What is there: what was committed, or what one connection sees."""

    fence: dict[str, tuple[int, str]] = field(default_factory=dict)
    effects: set[str] = field(default_factory=set)

    def admit(self, resource: str, token: int, owner: str) -> str:
        stands, of = self.fence.get(resource, (0, ""))
        if stands > token or (stands == token and of != owner):
            return f"too late, it has seen {stands}"
        self.fence[resource] = (token, owner)
        return "passed"

    def mint(self, resource: str, owner: str) -> int:
        token = self.fence.get(resource, (0, ""))[0] + 1
        self.fence[resource] = (token, owner)
        return token

    def once(self, effect: str) -> bool:
        new = effect not in self.effects
        self.effects.add(effect)
        return new

    def under(self, changes: Picture) -> Picture:
        return Picture(self.fence | changes.fence, self.effects | changes.effects)

    def changes_to(self, later: Picture) -> Picture:
        return Picture(dict(later.fence.items() - self.fence.items()), later.effects - self.effects)


@dataclass
class Asked:
    """What one connection has asked, and how the picture answers it."""

    answer: Future[Any]
    expected: Callable[[Picture], Any]


class Writer:
    """One connection, what it has changed since its last commit, and what it waits for."""

    def __init__(self, url: str) -> None:
        self.client = open_client("driver", url)
        self.changes = Picture()
        self.asked: Asked | None = None

    def admit(self, resource: str, token: int, owner: str) -> str:
        try:
            self.client.admit(resource, token, owner)
        except StaleFencingToken as refused:
            return f"too late, it has seen {refused.seen}"
        return "passed"

    def mint(self, resource: str, owner: str) -> int:
        return fencing.mint(self.client.fenced, resource, lease(term(nonce=owner)))


class Pair:
    """Two writers and somebody who sees whether one of them waits; used by every example."""

    def __init__(self, server: str, url: str, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.writers = (Writer(url), Writer(url))
        self._watcher = open_client("driver", url, autocommit=True)
        self._question = WAITING[server]

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self._watcher, *(writer.client for writer in self.writers)):
            client.close()

    def answered(self, answer: Future[Any]) -> bool:
        """``False`` as soon as it waits for the other's transaction."""
        while not wait([answer], timeout=0.02).done:
            if self._watcher.execute(self._question)[0][0]:
                return False
        return True

    def committed(self, prefix: str) -> Picture:
        client = self.writers[0].client
        fence = client.execute("SELECT resource, token, owner FROM dlock_fence")
        effects = client.execute("SELECT effect_id FROM dlock_once")
        client.rollback()
        found = Picture({_text(name): (token, _text(owner)) for name, token, owner in fence})
        found.effects = {_text(name) for (name,) in effects}
        return Picture(
            {name: row for name, row in found.fence.items() if name.startswith(prefix)},
            {name for name in found.effects if name.startswith(prefix)},
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


class Interleavings(RuleBasedStateMachine):
    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair
        self.writers = pair.writers
        self.committed = Picture()
        self.prefix = uuid.uuid4().hex

    def nobody_waits(self) -> bool:
        return not any(writer.asked for writer in self.writers)

    @precondition(nobody_waits)
    @rule(who=WHO, resource=RESOURCES, token=TOKENS, owner=OWNERS)
    def admit(self, who: int, resource: str, token: int, owner: str) -> None:
        name, writer = self.prefix + resource, self.writers[who]
        self.ask(
            writer,
            lambda: writer.admit(name, token, owner),
            lambda seen: seen.admit(name, token, owner),
        )

    @precondition(nobody_waits)
    @rule(who=WHO, resource=RESOURCES, owner=OWNERS)
    def mint(self, who: int, resource: str, owner: str) -> None:
        name, writer = self.prefix + resource, self.writers[who]
        self.ask(
            writer,
            lambda: writer.mint(name, owner),
            lambda seen: seen.mint(name, f"t:0:0|{owner}"),
        )

    @precondition(nobody_waits)
    @rule(who=WHO, effect=RESOURCES)
    def once(self, who: int, effect: str) -> None:
        name, writer = self.prefix + effect, self.writers[who]
        self.ask(writer, lambda: writer.client.once(name), lambda seen: seen.once(name))

    @rule(who=WHO)
    def commit(self, who: int) -> None:
        writer = self.writers[who]
        if not writer.asked:
            writer.client.commit()
            self.committed = self.committed.under(writer.changes)
            self.ended(writer)

    @rule(who=WHO)
    def rollback(self, who: int) -> None:
        writer = self.writers[who]
        if not writer.asked:
            writer.client.rollback()
            self.ended(writer)

    def ask(
        self, writer: Writer, act: Callable[[], Any], expected: Callable[[Picture], Any]
    ) -> None:
        writer.asked = Asked(self.pair.pool.submit(act), expected)
        if self.pair.answered(writer.asked.answer):
            self.compare(writer)

    def ended(self, writer: Writer) -> None:
        """Whoever waited for it waits no more."""
        writer.changes = Picture()
        for other in self.writers:
            if other.asked:
                self.compare(other)

    def compare(self, writer: Writer) -> None:
        assert writer.asked
        asked, writer.asked = writer.asked, None
        sees = self.committed.under(writer.changes)
        assert asked.answer.result() == asked.expected(sees)
        writer.changes = self.committed.changes_to(sees)

    def teardown(self) -> None:
        for writer in sorted(self.writers, key=lambda writer: writer.asked is not None):
            if writer.asked:  # the other one has ended; after a failure it may be of any kind
                wait([writer.asked.answer])
            writer.client.rollback()
            writer.changes, writer.asked = Picture(), None
        assert self.pair.committed(self.prefix) == self.committed


@pytest.mark.once
@pytest.mark.parametrize("server", servers(*WAITING))
def test_any_interleaving(server: str, database: Database) -> None:
    every = settings(
        max_examples=40,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    with ThreadPoolExecutor() as pool, Pair(server, database(server), pool) as pair:
        new: Any = lambda: Interleavings(pair)  # noqa: E731 (a class is all it is typed for)
        run_state_machine_as_test(new, settings=every)
