"""Every broker, every pool, early and late acknowledgement, results in Redis and in SQLite.

One worker a combination, with three slots. Whatever is below, a message that waits comes back as
it was and in its order, and when all is done neither store nor broker has anything left.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import chord

from celery_dlock.runtime import runtime
from tests.services.brokers import close, left
from tests.services.lab import Lab
from tests.services.sites import Site
from tests.services.turns import done, held, nothing_is_left, numbers, parked
from tests.services.until import until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


#: The one that every version of Celery is tested with.
EVERYWHERE = Site("rabbitmq", "prefork", late=True, kept="sqlite")

#: RabbitMQ once more, whose queues differ and whose workers do not.
QUORUM = Site("quorum", "gevent", late=False, kept="sqlite").param(marks=[pytest.mark.slow])

#: Each broker, and each pool with each acknowledgement: what a pool does meets no broker.
SITES = [
    EVERYWHERE.param(),
    QUORUM,
    *(
        site.param(marks=[pytest.mark.slow])
        for site in (
            Site("redis", "prefork", late=False, kept="redis"),
            Site("redis", "gevent", late=True, kept="sqlite"),
            Site("rabbitmq", "threads", late=False, kept="redis"),
            Site("filesystem", "threads", late=True, kept="redis"),
        )
    ),
]


@pytest.fixture(scope="module", params=SITES)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    site: Site = request.param
    lab = site.lab(request, tmp_path_factory.mktemp("site"), policy="queue")
    with lab.worker(site.pool, concurrency=3) as worker:
        yield lab
        worker.stop()
        assert left(lab.app) == 0
    close(lab.app)


def test_two_hot_orders_run_in_the_order_of_arrival_at_the_last_free_slot(lab: Lab) -> None:
    # Given two orders in work, so that messages arrive one after another at the third slot
    held(lab, "fifo-a", "fifo-b")
    sent = [
        lab.app.tasks["apply"].delay(order, number)
        for number in range(1, 7)
        for order in ("fifo-a", "fifo-b")
    ]
    parked(lab, "fifo-a", 6)
    parked(lab, "fifo-b", 6)

    lab.go("fifo-a")

    assert done(sent) == [number for number in range(1, 7) for _ in "ab"]
    assert numbers(lab, "fifo-a") == numbers(lab, "fifo-b") == list(range(7))
    nothing_is_left(lab, "fifo-a", "fifo-b")


def test_all_run_once_and_none_beside_another_when_nobody_holds_them_back(lab: Lab) -> None:
    apply = lab.app.tasks["apply"]
    sent = [apply.delay(order, number) for number in range(12) for order in ("hot-a", "hot-b")]

    assert done(sent) == [number for number in range(12) for _ in "ab"]
    assert sorted(numbers(lab, "hot-a")) == sorted(numbers(lab, "hot-b")) == list(range(12))
    nothing_is_left(lab, "hot-a", "hot-b")


def test_a_unique_task_is_one_message_while_it_lives(lab: Lab) -> None:
    once = lab.app.tasks["once"]
    held(lab, "once")
    first, *others = [once.delay("once", 1) for _ in range(5)]
    parked(lab, "once", 1)

    others.append(once.delay("once", 1))
    lab.go("once")

    assert {other.id for other in others} == {first.id}
    assert done([first]) == [1]
    until("nothing of it lives", lambda: not runtime(lab.app).backend.swapped())
    assert done([once.delay("once", 1)]) == [1]
    assert len(lab.journal.read("once", order="once")) == 2
    nothing_is_left(lab, "once")


def test_a_chord_whose_members_wait_completes(lab: Lab) -> None:
    apply, collect = lab.app.tasks["apply"], lab.app.tasks["collect"]
    held(lab, "chord")

    body = chord([apply.s("chord", number) for number in (1, 2, 3)])(collect.s("chord"))
    parked(lab, "chord", 3)
    lab.go("chord")

    assert done([body]) == [6]
    nothing_is_left(lab, "chord")


def test_a_message_that_waited_looks_like_one_that_did_not(lab: Lab) -> None:
    see = lab.app.tasks["see"]
    options = {
        "priority": 7,
        "headers": {"tenant": "blue"},
        "expires": datetime.now(UTC) + timedelta(hours=1),
        "time_limit": 50,
        "soft_time_limit": 40,
        "shadow": "apply for blue",
        "link": lab.app.tasks["note"].s(),
    }
    at_once = see.apply_async(("seen",), **options)
    done([at_once])
    held(lab, "seen")
    later = see.apply_async(("seen",), **options)
    parked(lab, "seen", 1)
    lab.go("seen")
    done([later])

    first, second = lab.journal.read("saw")
    assert (first["waits"], second["waits"]) == (0, 1)
    assert first["message"] == second["message"]
    assert first["message"]["priority"] == 7
    assert first["message"]["tenant"] == "blue"
    lab.journal.wait_for("callback", count=2)
    nothing_is_left(lab, "seen")


@pytest.mark.parametrize("site", [EVERYWHERE.param(), QUORUM])
def test_over_rabbitmq_rescheduled_messages_run_once_each(
    request: pytest.FixtureRequest, tmp_path: Path, site: Site
) -> None:
    lab = site.lab(request, tmp_path, policy="reschedule")
    with lab.worker(site.pool, concurrency=3) as worker:
        held(lab, "later")
        sent = [lab.app.tasks["apply"].delay("later", number) for number in range(1, 9)]
        until("one is rescheduled", lambda: any(result.state == "RETRY" for result in sent))
        lab.go("later")

        assert done(sent) == list(range(1, 9))
        assert sorted(numbers(lab, "later")) == list(range(9))
        nothing_is_left(lab, "later")
        worker.stop()
    assert left(lab.app) == 0
    close(lab.app)
