"""A store's ledger is replayed: a sound store passes, and one with a defect does not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.operations import Enter, Leave, Operation, Postpone
from celery_dlock.core.state import Claim, Outcome, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.consensus.rows import Kind, Name
from celery_dlock.stores.redis import wire
from tests.chaos import defects
from tests.chaos.ledger import Entry, Followed, ledger, tracing
from tests.chaos.replay import Replayed, replay
from tests.chaos.trace import Spoken, spoken
from tests.contract.memory_rows import RowsBackend
from tests.contract.twins import Clock
from tests.linearizability import broken
from tests.linearizability.plan import CLIENTS, Ask, Phase, Renewals, draw
from tests.linearizability.playing import answer_of, often_interrupted
from tests.linearizability.stores import GROUNDS
from tests.services.planted import Instead, one_in_every_run, planted
from tests.services.require import require
from tests.services.until import until

#: Of so many plans one shows a defect.
PLANS = 100
LONG = 60_000_000
A = Claim("key", "a", "1", LONG, wait=WaitMode.QUEUE)
B = replace(A, task="b", wait=WaitMode.NOT)
#: What they have seldom: somebody comes to see a lease that was renewed.
SELDOM = [Phase(1, ((each,),)) for each in (Enter(A), Renewals((A,)), Enter(B))]
SWAPPED = (b"one", b"another")

Play = Callable[[int], Replayed]


def played(
    folder: Path,
    seed: int,
    opens: Callable[[str, BackendOptions], LockBackend],
    url: str,
    clock: Clock | None = None,
) -> Replayed:
    """The clients of a plan ask two stores at once, by a clock that is told or by their own.

    By their own nothing ends but a lease.
    """
    plan = next(plan for plan in map(draw, count(seed)) if plan.driven == (clock is not None))
    options = BackendOptions(prefix=f"replay-{uuid.uuid4().hex}", clock=clock)
    stores = [opens(url, options) for _ in range(2)]

    def ask(client: int, asks: Sequence[Ask]) -> None:
        for each in asks:
            with suppress(BackendUnavailable):
                say(stores[client % 2], each)

    with often_interrupted(), ThreadPoolExecutor(CLIENTS) as threads:
        for phase in (*plan.phases, *SELDOM):
            if clock is not None:
                clock.now += phase.step
            list(threads.map(ask, range(CLIENTS), phase.asks))
    for name in SWAPPED:
        stores[0].swap("name", None, name, LONG)
        if clock is not None:
            clock.now += 1
    entries = ledger(stores[0])
    assert entries
    for each in stores:
        each.close()
    return replay(entries, spoken(folder))


def say(store: LockBackend, what: Ask) -> None:
    """By the short names, if it has one: a store may have its defect there."""
    match what:
        case Enter(claim, message):
            store.enter(claim, message)
        case Leave(claim, outcome, message):
            store.leave(claim, outcome, message)
        case Postpone(claim, message, delay, max_delay):
            store.postpone(claim, message, delay, max_delay)
        case _:
            answer_of(store, what)


def on_ground(ground: str, folder: Path, seed: int, clock: Clock | None = None) -> Replayed:
    folder.mkdir()
    with ExitStack() as stack:
        url = GROUNDS[ground](stack).url
        opens = stack.enter_context(tracing(folder))
        return played(folder, seed, opens, url, clock)


def on_kind(kind: type[LockBackend], folder: Path, seed: int) -> Replayed:
    folder.mkdir()
    opens = Followed(folder, kind).from_url
    if issubclass(kind, RowsBackend):
        return played(folder, seed, opens, "rows://")
    return played(folder, seed, opens, f"sqlite:///{folder}/locks.db", Clock())


def found(play: Play, plans: int = PLANS) -> bool:
    return any(play(seed).wrong for seed in range(plans))


@pytest.mark.parametrize(
    "ground",
    [
        "sqlite",
        pytest.param("redis", marks=pytest.mark.server("redis")),
        pytest.param("postgresql", marks=pytest.mark.server("postgresql")),
        pytest.param("etcd", marks=pytest.mark.server("etcd")),
        pytest.param("zookeeper", marks=pytest.mark.server("zookeeper")),
    ],
)
def test_what_a_store_answers_follows_from_its_ledger(ground: str, tmp_path: Path) -> None:
    if ground != "sqlite":
        require(ground)
    for seed in range(2):
        replayed = on_ground(ground, tmp_path / str(seed), seed)
        assert replayed.wrong == ()
        assert replayed.operations > 20
        assert replayed.keys == 3


@pytest.mark.parametrize("kind", [defects.Copy, RowsBackend])
def test_a_store_without_a_defect_passes(kind: type[LockBackend], tmp_path: Path) -> None:
    assert not found(lambda seed: on_kind(kind, tmp_path / str(seed), seed), 10)


STORES: tuple[type[LockBackend], ...] = (
    *defects.Copy.__subclasses__(),
    broken.BeginsNoTransaction,
    broken.CommitsWhateverItHasRead,
)


@pytest.mark.parametrize(
    "kind", one_in_every_run({store.__name__: store for store in STORES}, "HandsOutOldTokens")
)
def test_the_defect_of_a_store_is_found(kind: type[LockBackend], tmp_path: Path) -> None:
    assert found(lambda seed: on_kind(kind, tmp_path / str(seed), seed))


def _impatient(whole: Any, claim: Claim, *of: Any, **more: Any) -> Any:
    return whole(replace(claim, gives_up=0), *of, **more)


def _for_an_instant(whole: Any, claims: Sequence[Claim]) -> Any:
    return whole([replace(claim, ttl=1) for claim in claims])


@pytest.mark.planted
@pytest.mark.server("redis")
@pytest.mark.parametrize(
    ("name", "instead"),
    [("renew_arguments", _for_an_instant), ("claim_arguments", _impatient)],
    ids=["renewed in vain", "patient"],
)
def test_what_a_script_does_otherwise_is_found(name: str, instead: Instead, tmp_path: Path) -> None:
    require("redis")
    with planted(wire, name, instead):
        assert found(lambda seed: on_ground("redis", tmp_path / str(seed), seed, Clock()))


ASKED: list[Operation[Any]] = [
    Enter(A, b"a"),
    Enter(B, b"b"),
    Leave(A, Outcome.OVER),
    Enter(B, b"b"),
]


@pytest.fixture
def told(tmp_path: Path) -> tuple[list[Entry], list[Spoken]]:
    """What a sound store has kept of those calls, and answered."""
    url = f"sqlite:///{tmp_path}/locks.db"
    store = Followed(tmp_path, defects.Copy).from_url(url, BackendOptions())
    for each in ASKED:
        store.apply(each)
    entries = ledger(store)
    assert entries is not None
    assert [entry.what for entry in entries] == [(each,) for each in ASKED]
    return entries, spoken(tmp_path)


def test_the_ledger_knows_what_nobody_heard(told: tuple[list[Entry], list[Spoken]]) -> None:
    entries, said = told
    said[2] = replace(said[2], answered=None, answer=None)
    assert not replay(entries, said).wrong
    (wrong,) = replay([*entries[:2], *entries[3:]], said).wrong
    assert "key: Enter" in wrong
    assert "Busy" in wrong


def test_what_was_answered_was_done(told: tuple[list[Entry], list[Spoken]]) -> None:
    entries, said = told
    assert [text for text in replay(entries[:3], said).wrong if "and was never done" in text]


def test_the_answer_to_another_call_is_found(told: tuple[list[Entry], list[Spoken]]) -> None:
    entries, said = told
    said[0], said[1] = (replace(one, answer=other.answer) for one, other in [said[:2], said[1::-1]])
    assert replay(entries, said).wrong


def test_what_a_sweep_has_not_heard_itself_is_not_held_against_it(tmp_path: Path) -> None:
    options = BackendOptions(prefix=uuid.uuid4().hex)
    store: Any = Followed(tmp_path, RowsBackend).from_url("rows://", options)
    store.enter(replace(A, ttl=2_000_000))
    store.enter(replace(B, wait=WaitMode.QUEUE), b"b")

    row = Name(Kind.HOLDER, "key", A.owner)
    until("its lease is over", lambda: store.rows.read([row]) == [None])

    def goes_unheard(commit: object) -> None:
        raise BackendUnavailable("the answer was lost")

    store.rows.after_commit = goes_unheard
    until("b is woken", lambda: store.sweep().wakes == () and store.peek("key").grants)
    store.rows.after_commit = lambda commit: None
    assert not replay(ledger(store), spoken(tmp_path)).wrong
