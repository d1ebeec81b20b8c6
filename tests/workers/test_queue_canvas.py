"""Chains and chords whose members wait for each other in the lock store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import chain, chord

from celery_dlock.tasks.runtime import runtime
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.workers.test_canvas import hang_up

pytestmark = [
    pytest.mark.server("redis"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def lab(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    url = redis_server.url.removesuffix("/0")
    config = {
        "broker_url": f"{url}/5",
        "result_backend": f"{url}/6",
        "dlock_url": f"{url}/0",
        "dlock_key_prefix": "queued",
    }
    options = {"task": {"acks_late": True}, "lock": {"policy": "queue"}}
    lab = Lab(tmp_path_factory.mktemp("queued"), {"celery": config, **options})
    with lab.worker("prefork", concurrency=4):
        yield lab
    hang_up(lab)


def parked(lab: Lab, order: str, count: int) -> None:
    backend = runtime(lab.app).backend
    until(f"{count} are parked", lambda: backend.peek(f"order:{order}").parked == count)


def test_a_chord_whose_members_wait_for_one_key_completes(lab: Lab) -> None:
    apply, collect = lab.app.tasks["apply"], lab.app.tasks["collect"]
    apply.delay("42", 0, hold="chord")
    lab.journal.wait_for("start", order="42")

    result = chord([apply.s("42", number) for number in (1, 2, 3)])(collect.s("42"))
    parked(lab, "42", 3)
    lab.go("chord")

    assert result.get(timeout=60) == 6


def test_a_chain_goes_on_after_a_member_that_waited(lab: Lab) -> None:
    apply = lab.app.tasks["apply"]
    apply.delay("43", 0, hold="chain")
    lab.journal.wait_for("start", order="43")

    result = chain(apply.si("43", 1), apply.si("43", 2), lab.app.tasks["note"].s())()
    parked(lab, "43", 1)
    lab.go("chain")

    assert result.get(timeout=60) == 2
