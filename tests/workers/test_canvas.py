"""Chains, groups and chords over real workers, whose members all contend for one key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_dlock import lock
from celery_dlock.runtime import forget, runtime
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [
    pytest.mark.server("redis"),
    # Celery 5.5 with a newer redis-py
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


@pytest.fixture(scope="module", params=["reschedule", "queue"])
def lab(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """Broker, results and locks on Redis, and one worker for all tests of this file."""
    url = redis_server.url.removesuffix("/0")
    config = {
        "broker_url": f"{url}/1",
        "result_backend": f"{url}/2",
        "dlock_url": f"{url}/0",
        "dlock_key_prefix": f"canvas-{request.param}",
    }
    options = {"lock": {"policy": request.param}, "task": {"acks_late": True}}
    lab = Lab(tmp_path_factory.mktemp("canvas"), {"celery": config, **options})
    with lab.worker("prefork", concurrency=4):
        yield lab
    hang_up(lab)


def hang_up(lab: Lab) -> None:
    """Each result unsubscribes when it is collected, if it is still subscribed: none is, then."""
    results, client = lab.app.backend.result_consumer, lab.app.backend.client
    results.subscribed_to.clear()
    forget(lab.app)
    lab.app.close()
    results._pubsub.close()
    client.connection_pool.disconnect()


def check_no_overlap(lab: Lab, order: str, count: int) -> None:
    entries = lab.journal.read(order=order)
    assert [entry["what"] for entry in entries] == ["start", "end"] * count


def refused(lab: Lab, order: str, count: int) -> None:
    """Wait until so many wait for *order*: they come back, or are called."""
    backend = runtime(lab.app).backend
    until(f"{count} are refused", lambda: len(backend.peek(f"order:{order}").waiting) == count)


def test_chains_on_one_key_run_through(lab: Lab) -> None:
    apply = lab.app.tasks["apply"]

    with lock("order:chain", app=lab.app, timeout=0):
        chains = [chain(*(apply.si("chain", 10 * n + m) for m in range(3)))() for n in range(4)]
        refused(lab, "chain", 4)

    assert [result.get(timeout=180) for result in chains] == [2, 12, 22, 32]
    check_no_overlap(lab, "chain", 12)
    for n in range(4):
        numbers = [e["number"] for e in lab.journal.read("end", order="chain")]
        assert [m for m in numbers if m // 10 == n] == [10 * n, 10 * n + 1, 10 * n + 2]


def test_a_group_on_one_key_has_every_result(lab: Lab) -> None:
    apply = lab.app.tasks["apply"]

    with lock("order:group", app=lab.app, timeout=0):
        result = group(apply.s("group", number) for number in range(12))()
        refused(lab, "group", 12)

    assert result.get(timeout=60) == list(range(12))
    check_no_overlap(lab, "group", 12)


def test_a_chord_whose_members_and_body_take_one_key_completes(lab: Lab) -> None:
    apply, collect = lab.app.tasks["apply"], lab.app.tasks["collect"]

    with lock("order:chord", app=lab.app, timeout=0):
        result = chord([apply.s("chord", number) for number in range(8)], collect.s("chord"))()
        refused(lab, "chord", 8)

    assert result.get(timeout=60) == sum(range(8))
    check_no_overlap(lab, "chord", 9)
    assert lab.journal.read("end", order="chord")[-1]["numbers"] == list(range(8))


def test_a_chord_in_a_chain_in_a_chord_completes(lab: Lab) -> None:
    apply, collect = lab.app.tasks["apply"], lab.app.tasks["collect"]
    inner = chord([apply.si("nested", 2), apply.si("nested", 3)], collect.s("nested"))
    header = [apply.si("nested", 1), chain(apply.si("nested", 9), inner), apply.si("nested", 4)]

    with lock("order:nested", app=lab.app, timeout=0):
        result = chord(header, collect.s("nested"))()
        refused(lab, "nested", 3)

    assert result.get(timeout=60) == 1 + (2 + 3) + 4
    check_no_overlap(lab, "nested", 7)


@pytest.mark.parametrize("fails", [False, True])
def test_the_links_of_a_refused_task_are_called_once(lab: Lab, fails: bool) -> None:
    apply, note = lab.app.tasks["apply"], lab.app.tasks["note"]
    order = f"links-{fails}"

    with lock(f"order:{order}", app=lab.app, timeout=0):
        result = apply.apply_async(
            (order,),
            {"fails": fails},
            link=note.si(order, "linked"),
            link_error=note.si(order, "failed"),
        )
        refused(lab, order, 1)
    expected = "failed" if fails else "linked"
    lab.journal.wait_for(expected, result=order)

    until("it is done", result.ready)
    called = [e["what"] for e in lab.journal.read(result=order)]
    assert called == [expected]


def test_a_chord_with_a_failed_member_fails_and_does_not_hang(lab: Lab) -> None:
    apply, collect = lab.app.tasks["apply"], lab.app.tasks["collect"]
    header: list[Any] = [apply.s("bad", 1), apply.s("bad", 2, fails=True), apply.s("bad", 3)]

    with lock("order:bad", app=lab.app, timeout=0):
        result = chord(header, collect.s("bad"))()
        refused(lab, "bad", 3)

    until("the chord has failed", lambda: result.state == "FAILURE")
    assert isinstance(result.result, ChordError)
    lab.journal.wait_for("end", count=3, order="bad")
    assert not any("numbers" in entry for entry in lab.journal.read(order="bad"))
