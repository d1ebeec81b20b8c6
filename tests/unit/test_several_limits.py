"""Several limits at once: who waits where, what is fair, and that nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.core import edits
from celery_dlock.core.access import Keys
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import KeyState, Mode
from celery_dlock.locks.other_keys import OtherKeys
from tests.services.crowd import Crowd, Then, Trouble, keys
from tests.services.planted import planted

Gather = Callable[..., Crowd]

ALL, EACH = 20, 3


@pytest.fixture
def gather() -> Iterator[Gather]:
    crowds: list[Crowd] = []

    def gather(tasks: dict[str, Keys], **options: Any) -> Crowd:
        crowds.append(Crowd(tasks, **options))
        return crowds[-1]

    yield gather
    for crowd in crowds:
        crowd.close()


def imports(tenant: str, count: int) -> dict[str, Keys]:
    """So many messages of one tenant."""
    asked = keys({f"tenant:{tenant}": EACH, "import": ALL})
    return {f"{tenant}-{number}:0:0": asked for number in range(count)}


def test_a_crowd_of_one_tenant_does_not_hold_up_another(gather: Gather) -> None:
    crowd = gather({**imports("a", 1000), **imports("b", 50)}, workers=30)
    left = 0
    for _ in crowd.play():
        of_b = sum(task.startswith("b") for task in crowd.done)
        if of_b == 50:
            left = 1050 - len(crowd.done)
            break
    assert left >= 900


def test_no_slot_is_idle_while_somebody_could_use_it(gather: Gather) -> None:
    tenants = "abcdefghij"
    crowd = gather(
        {t: k for name in tenants for t, k in imports(name, 20).items()},
        workers=40,
        slow_bodies=True,
    )
    idle = quiet_moments = 0
    for quiet in crowd.play():
        if quiet:
            quiet_moments += 1
            idle += any(crowd.could_run(task) for task in crowd.waiting())
    assert len(crowd.done) == 200
    assert (idle, quiet_moments > 100) == (0, True)


@pytest.mark.parametrize("seed", range(3))
def test_a_task_is_published_less_than_once_for_each_of_its_keys(gather: Gather, seed: int) -> None:
    """On average: one that is woken before its delivery has left is woken once more."""
    wanted = [{f"order:{n % 9}": 1, f"tenant:{n % 4}": 3, "all": 5} for n in range(200)]
    tasks = {f"t{n}:0:0": keys(each) for n, each in enumerate(wanted)}
    crowd = gather(tasks, workers=12, seed=seed)
    for _ in crowd.play():
        pass
    assert len(crowd.done) == 200
    assert sum(crowd.wakes.values()) <= 2.5 * 200


def test_limits_that_are_declared_in_two_orders_block_nobody(gather: Gather) -> None:
    wanted = {"a": 2, "b": 2, "c": 1, "d": 1}
    one, other = keys(wanted), keys(dict(reversed(wanted.items())))
    crowd = gather({f"t{n}:0:0": (one, other)[n % 2] for n in range(60)})
    for _ in crowd.play():
        pass
    assert len(crowd.done) == 60
    assert crowd.clock.now == Crowd({}).clock.now + 1_000_000, "nobody has waited for anything late"


def random_tasks(seed: int, count: int = 40) -> dict[str, Keys]:
    rng = random.Random(seed)
    limits = {"narrow": 2, "middle": 3, "wide": 5}

    def asked() -> Keys:
        declared = rng.sample(sorted(limits), len(limits))  # each task in an order of its own
        some = {key: limits[key] for key in declared if rng.random() < 0.6}
        for key in ("a", "m", "z"):
            if rng.random() < 0.4:
                some[key] = rng.choice((0, 1))
        if rng.random() < 0.3:
            some["p"] = 0
        elif not some or rng.random() < 0.1:
            some["p"] = 1
        return keys(some)

    return {f"t{n}:0:0": asked() for n in range(count)}


TROUBLE = Trouble(killed=0.01, answer_lost=0.01, delivered_twice=0.05, wake_lost=0.02, idle=0.2)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_goes_wrong_all_run_and_no_limit_is_exceeded(gather: Gather, seed: int) -> None:
    tasks = random_tasks(seed)
    crowd = gather(tasks, seed=seed, trouble=TROUBLE, keep=list(tasks)[:: seed % 3 + 1])
    for _ in crowd.play():
        pass
    assert set(crowd.done) == set(tasks)
    assert crowd.left(after=7_200) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_that_changes_while_tasks_wait_blocks_nobody(gather: Gather, seed: int) -> None:
    orders = (
        [{"x": 2, "y": 3}, {"y": 3, "x": 4}] if seed % 2 else [{"x": 2, "y": 3}, {"x": 4, "y": 3}]
    )
    tasks = {f"t{n}:0:0": keys(orders[n % 2]) for n in range(30)}
    crowd = gather(tasks, seed=seed)
    began = crowd.clock.now
    play_with_changes(crowd, tasks, seed)
    assert len(crowd.done) == 30
    assert crowd.clock.now < began + 60 * SECOND, "nobody has waited for anything late"


def play_with_changes(crowd: Crowd, tasks: dict[str, Keys], seed: int) -> None:
    """Now and then every limit is another one, for those that ask from then on."""
    chance = random.Random(seed)
    for step, _ in enumerate(crowd.play()):
        if step % 40 == 0:
            limits = {key: chance.randint(1, 6) for asked in tasks.values() for key in asked.own}
            for task, asked in tasks.items():
                tasks[task] = keys({key: limits[key] for key in asked.own}, limited=True)


def _keeps_what_it_has(whole: Any, state: KeyState, mode: Mode, limit: int) -> Any:
    kept = [turn for turn in state.grants if turn.elsewhere]
    after = whole(state, mode, limit)
    gone = [turn for turn in kept if turn.task not in {left.task for left in after.grants}]
    return replace(after, grants=(*after.grants, *(replace(turn, limit=limit) for turn in gone)))


@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (edits, "ask_with_limit", _keeps_what_it_has),
        (OtherKeys, "_waits_for_itself", lambda *_, **__: False),
    ],
    ids=["a limit that falls leaves turns beyond it", "nobody looks at who waits"],
)
def test_what_is_kept_too_long_is_found(
    gather: Gather, owner: Any, name: str, instead: Any
) -> None:
    def blocks_nobody() -> None:
        for seed in range(1, 20, 2):
            test_a_limit_that_changes_while_tasks_wait_blocks_nobody(gather, seed)

    with planted(owner, name, instead), pytest.raises(AssertionError, match="anything late"):
        blocks_nobody()


@pytest.mark.parametrize("seed", range(20))
def test_who_is_revoked_while_it_waits_keeps_nothing(gather: Gather, seed: int) -> None:
    tasks = random_tasks(seed)
    crowd = gather(tasks, seed=seed, trouble=Trouble(revoked=0.2, delivered_twice=0.05))
    for _ in crowd.play():
        pass
    assert crowd.revoked
    assert crowd.revoked | set(crowd.done) == set(tasks)
    assert crowd.left() == []


def random_chains(seed: int) -> tuple[dict[str, Keys], dict[str, Then]]:
    """Strangers, and pairs of tasks that keep for the second one what they have in common."""
    rng = random.Random(seed)
    tasks, follow = random_tasks(seed, 20), dict[str, Then]()

    def also(kept: dict[str, int]) -> Keys:
        more = {key: rng.choice((0, 1)) for key in ("a", "m", "p", "z") if rng.random() < 0.4}
        limit = {"narrow": 2} if rng.random() < 0.2 else {}
        return keys({**more, **kept, **limit})

    for number in range(12):
        kept = {rng.choice("amz"): 1} | ({"m": 1} if rng.random() < 0.3 else {})
        first, second = f"c{number}:0:0", f"d{number}:0:0"
        tasks |= {first: also(kept), second: also(kept)}
        follow[first] = Then(second, at_head=rng.random() < 0.5)
    return tasks, follow


@pytest.mark.parametrize("seed", range(60))
def test_a_key_that_is_kept_is_kept_until_two_would_wait_for_each_other(
    gather: Gather, seed: int
) -> None:
    tasks, follow = random_chains(seed)
    crowd = gather(tasks, seed=seed, then=follow)
    began = crowd.clock.now
    for _ in crowd.play():
        pass
    assert set(crowd.done) == set(tasks)
    assert crowd.overtaken <= crowd.unreserved
    assert crowd.clock.now < began + 120 * SECOND, "nobody has waited for what is late"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_goes_wrong_beside_keys_that_are_kept_all_run(gather: Gather, seed: int) -> None:
    tasks, follow = random_chains(seed)
    crowd = gather(
        tasks, seed=seed, trouble=TROUBLE, keep=list(tasks)[:: seed % 3 + 1], then=follow
    )
    for _ in crowd.play():
        pass
    assert set(crowd.done) >= set(tasks) - {then.task for then in follow.values()}
    assert crowd.left(after=2 * 86_400) == []
