"""What concurrent clients hear of every store is what one after the other would have heard.

A few histories; ``python -m tests.linearizability`` plays as many as you like.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_dlock.stores.base import LockBackend
from tests.linearizability import broken
from tests.linearizability.plan import draw
from tests.linearizability.playing import History, play
from tests.linearizability.stores import GROUNDS, Ground
from tests.services.planted import one_in_every_run
from tests.services.redis_nodes import RedisNodes
from tests.services.stores import STORES, Store

#: A defect is found within so many histories; most are in the first ten.
ENOUGH = 1_000


def histories(ground: Ground, store: type[LockBackend] | None = None) -> Iterator[History]:
    """One after the other, from the first seed on."""
    for seed in itertools.count(1):
        plan = draw(seed, strangers=ground.strangers)
        yield play(plan, ground, store.from_url) if store else play(plan, ground)


def violations(history: History) -> str:
    return "\n".join(map(str, history.violations() or []))


#: With Sentinel and in a cluster an operation is the script that runs on Redis; the campaign plays
#: on these, too.
KINDS = [store.param() for store in STORES if not store.scheme.startswith("redis+")]


@pytest.mark.slow
@pytest.mark.parametrize("store", KINDS)
def test_what_clients_hear_at_once_has_an_order(
    store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = store.url(request.getfixturevalue, tmp_path)
    ground = Ground(url, strangers=store.scheme != "redlock")
    for history in itertools.islice(histories(ground), 20):
        assert not violations(history)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.server(name), pytest.mark.once])
        for name in ("redis", "postgresql", "etcd", "zookeeper")
    ],
)
def test_so_it_has_when_connections_end_and_answers_are_lost(name: str) -> None:
    with ExitStack() as stack:
        for history in itertools.islice(histories(GROUNDS[name](stack)), 10):
            assert not violations(history)


def is_found(store: type[LockBackend], ground: Ground) -> bool:
    return any(map(violations, itertools.islice(histories(ground, store), ENOUGH)))


IN_MEMORY = (
    broken.ReadsAndThenWrites,
    broken.AnswersBeforeItCommits,
    broken.TakesTheTokenFirst,
    broken.GivesOneSlotTwice,
    broken.BringsBackWhatItRenews,
)


@pytest.mark.parametrize(
    "store",
    one_in_every_run({store.__name__: store for store in IN_MEMORY}, "ReadsAndThenWrites"),
)
def test_a_defect_in_memory_is_found(store: type[LockBackend]) -> None:
    assert is_found(store, Ground("memory://"))


@pytest.mark.planted
def test_a_defect_in_a_file_is_found(tmp_path: Path) -> None:
    assert is_found(broken.BeginsNoTransaction, Ground(f"sqlite:///{tmp_path}/locks.db"))


@pytest.mark.planted
def test_a_defect_of_commits_as_in_etcd_and_zookeeper_is_found() -> None:
    assert is_found(broken.CommitsWhateverItHasRead, Ground("rows://"))


@pytest.mark.planted
@pytest.mark.server("redis")
def test_a_defect_on_several_servers_is_found(redis_nodes: RedisNodes) -> None:
    assert is_found(broken.LeavesTheQueueOnly, Ground(redis_nodes.url, strangers=False))


@pytest.mark.planted
@pytest.mark.server("redis")
def test_a_defect_in_asking_again_is_found() -> None:
    with ExitStack() as stack:
        assert is_found(broken.SaysNotThatItAsksAgain, GROUNDS["redis"](stack))
