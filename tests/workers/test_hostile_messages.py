"""Whatever arrives, a worker whose tasks have locks goes on as one without locks does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_dlock.runtime import runtime
from celery_dlock.testing import held_by_another
from tests.services.brokers import (
    close,
    handed_out,
    in_queues,
    kept_in_redis,
    over_rabbitmq,
    over_redis,
)
from tests.services.hostile_messages import HostileMessage, honest_message, hostile_messages
from tests.services.hostile_tasks import LOCKS, make_app
from tests.services.lab import Journal
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = pytest.mark.slow

#: So many at a time: the honest tasks behind them tell whether the worker lives.
BATCH = 50
BATCHES = 4

#: Where tasks wait while messages arrive, if their policy lets them.
HELD = [*(f"{name}:hot" for name in LOCKS), "callable:hot", "order:hot"]


#: Messages of both protocols that wait there for all the time, and the number that tells them.
WAITING = tuple(product(("queues", "unique"), (1, 2)))
NUMBER = 1_000_000


class Attacked:
    """A worker, and the queue that hostile and honest messages are sent to."""

    def __init__(self, folder: Path, celery: dict[str, Any], *, plain: bool) -> None:
        name = "plain" if plain else "locked"
        queue = f"{celery['task_default_queue']}-{name}"
        config = {
            "celery": {**celery, "task_default_queue": queue},
            "folder": str(folder / name),
            "plain": plain,
        }
        (folder / name).mkdir()
        self.app: Celery = make_app(config)
        self.journal = Journal(folder / name / "journal")
        self.worker = Worker(
            folder, config, name, "prefork", 2, app="tests.services.hostile_tasks:app"
        )

    def send(self, messages: list[HostileMessage], order: str) -> None:
        """*messages*, and an honest one for each task and protocol."""
        for message in messages:
            message.publish(self.app)
        for name, protocol in product(LOCKS, (1, 2)):
            honest = honest_message(self.app, name, protocol, f"{order}-{protocol}")
            assert honest.publish(self.app)

    def has_gone_on(self, order: str) -> None:
        """Wait until all honest tasks have run; fail if the main process began anew."""

        def ran() -> bool:
            assert self.worker.process is not None
            log = self.worker.log
            assert self.worker.process.poll() is None, log[-4000:]
            lost = log.find("Connection to broker lost")
            assert lost < 0, log[lost : lost + 4000]
            entries = self.journal.read("ran")
            orders = {f"{order}-{protocol}" for protocol in (1, 2)}
            seen = {(e["task"], e["order"]) for e in entries if e["order"] in orders}
            return len(seen) == 2 * len(LOCKS)

        until(lambda: f"{order} on {self.app.conf.task_default_queue}", ran)


@pytest.fixture(params=["redis", "rabbitmq"])
def both(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path
) -> Iterator[tuple[Attacked, Attacked]]:
    """A plain worker and one whose tasks have locks, over one broker."""
    if request.param == "redis":
        broker = over_redis(redis_server.port)
    else:
        broker = over_rabbitmq(request.getfixturevalue("rabbitmq_server").url)
    celery = {**broker, **kept_in_redis(redis_server.port)}
    plain, locked = (Attacked(tmp_path, celery, plain=plain) for plain in (True, False))
    with plain.worker, locked.worker:
        yield plain, locked
    for attacked in (plain, locked):
        close(attacked.app)


def test_no_message_ends_a_worker_that_celerys_survives(both: tuple[Attacked, Attacked]) -> None:
    plain, locked = both
    batches = BATCHES * int(os.environ.get("DLOCK_FUZZ", "1"))
    messages = hostile_messages(plain.app, list(LOCKS), seed=1, number=BATCH * batches)
    with held_by_another(HELD, app=locked.app):
        for name, protocol in WAITING:
            honest_message(locked.app, name, protocol, "hot", NUMBER + protocol).publish(locked.app)
        for at in range(batches):
            batch = list(islice(messages, BATCH))
            for attacked in both:
                attacked.send(batch, order=f"honest-{at}")
            for attacked in both:
                attacked.has_gone_on(f"honest-{at}")
        keys = {f"{name}:hot" for name, _ in WAITING}
        assert all(runtime(locked.app).backend.peek(key).waiting for key in keys)
    for name, protocol in WAITING:
        locked.journal.wait_for("ran", task=name, order="hot", number=NUMBER + protocol)
    # And what Celery itself never acknowledges, as a shadow name that is no text, is all that stays
    until("nothing comes again for ever", lambda: in_queues(locked.app) == 0)
    until("the rest is Celery's", lambda: {*handed_out(locked.app)} <= {*handed_out(plain.app)})
