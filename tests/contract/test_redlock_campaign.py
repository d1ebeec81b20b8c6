"""Several clients, each cut off from other nodes, and nodes that forget: a minority at a time.

Whatever happens, no more hold a key than may, and of each slot a later holder has a larger token.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from celery_dlock.core.state import Claim, Mode, NotHeld, Outcome, Renewed, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.redlock import node as redlock_node
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import SECOND, claim
from tests.contract.redlock_store import StoreOnNodes, store_on_nodes, warm
from tests.services.proxy import Proxy, proxy_to
from tests.services.redis_nodes import RedisNodes, running_nodes

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

CLIENTS = 3
STEPS = 500
LIMITS = {"one": 1, "two": 2, "read": 1}
MINORITY = 2


@dataclass
class Held:
    """What a client believes to hold, and until when."""

    claim: Claim
    client: int
    run: Run
    until: int


@dataclass
class Campaign:
    """One seed."""

    dice: random.Random
    clock: ManualClock
    store: StoreOnNodes
    links: list[list[Proxy]]
    clients: list[RedlockBackend]
    held: list[Held] = field(default_factory=list[Held])
    largest: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    happened: Counter[str] = field(default_factory=Counter[str])

    def step(self, number: int) -> None:
        kinds: dict[Callable[[int], None], int] = {
            self.enter: 10,
            self.leave: 4,
            self.renew: 2,
            self.wait: 4,
            self.cut: 2,
            self.heal: 2,
            self.forget: 1,
        }
        (kind,) = self.dice.choices(list(kinds), list(kinds.values()))
        try:
            kind(number)
        except BackendUnavailable:
            self.happened["unavailable"] += 1
        else:
            self.happened[kind.__name__] += 1

    def enter(self, number: int) -> None:
        key, client = self.dice.choice(list(LIMITS)), self.dice.randrange(CLIENTS)
        mode = self.dice.choice(list(Mode)) if key == "read" else Mode.LIMITED
        mine = claim(f"task {number}", key=key, limit=LIMITS[key], mode=mode)
        verdict = self.clients[client].enter(mine).verdict
        if isinstance(verdict, Run):
            self.check(mine, verdict)
            self.held.append(Held(mine, client, verdict, self.clock.now + 10 * SECOND))
            self.happened["granted"] += 1

    def check(self, mine: Claim, run: Run) -> None:
        others = [
            held for held in self.held if held.claim.key == mine.key and held.until > self.clock.now
        ]
        if mine.mode is Mode.SHARED:
            assert all(held.claim.mode is Mode.SHARED for held in others), (mine, others)
            return
        assert len(others) < mine.limit, (mine, others)
        assert run.slot not in {held.run.slot for held in others}
        assert self.largest[mine.key, run.slot] < run.token < 2**53
        self.largest[mine.key, run.slot] = run.token

    def leave(self, number: int) -> None:
        if self.held:
            held = self.held.pop(self.dice.randrange(len(self.held)))
            outcome = self.dice.choice([Outcome.OVER, Outcome.DONE])
            self.clients[held.client].leave(held.claim, outcome)

    def renew(self, number: int) -> None:
        if self.held:
            held = self.dice.choice(self.held)
            match self.clients[held.client].renew([held.claim]):
                case [Renewed()]:
                    assert held.until > self.clock.now, "a lease came back"
                    held.until = self.clock.now + 10 * SECOND
                case [NotHeld()]:
                    self.held.remove(held)

    def wait(self, number: int) -> None:
        self.clock.advance(self.dice.choice([0.001, 0.5, 2, 5]))

    def cut(self, number: int) -> None:
        link = self.dice.choice(self.dice.choice(self.links))
        link.nonsense = b""
        link.cut()

    def heal(self, number: int) -> None:
        for link in self.dice.choice(self.links):
            link.nonsense = None

    def forget(self, number: int) -> None:
        silent = [node for node in range(5) if not self.store.look(node).votes]
        if len(silent) < MINORITY:
            self.store.forget(self.dice.randrange(5))


def campaign(nodes: RedisNodes, seed: int, stack: ExitStack) -> Campaign:
    clock = ManualClock()
    store = stack.enter_context(store_on_nodes(nodes, clock))
    warm(store.backend)
    links = [[stack.enter_context(proxy_to(node.port)) for node in nodes] for _ in range(CLIENTS)]
    clients = [store.another([proxy.port for proxy in ports]) for ports in links]
    return Campaign(random.Random(seed), clock, store, links, clients)


@pytest.mark.parametrize("seed", range(6))
def test_nobody_holds_twice_and_tokens_grow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redlock_node, "REST_LONGEST", 0.005)
    with running_nodes(5) as nodes, ExitStack() as stack:
        one = campaign(nodes, seed, stack)
        for number in range(STEPS):
            one.step(number)

    assert one.happened["granted"] > STEPS / 25
    assert one.happened["forget"] > 0
    assert one.happened["unavailable"] > 0
