"""The broker's visibility timeout, over when the test says so.

Redis as a broker delivers a message again when it was not acknowledged for an hour. kombu's own
code for that is run here, with a timeout of nothing.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.connection import Connection

from tests.services.lab import Lab
from tests.services.until import until
from tests.services.worker import Worker


def deliver_again(app: Celery) -> int:
    """Put every message that is not acknowledged back into its queue; how many there were."""
    url = app.conf.broker_url
    with Connection(url, transport_options={"visibility_timeout": 0}) as connection:
        channel = connection.default_channel
        with channel.conn_or_acquire() as client:

            def handed_out() -> set[tuple[bytes, float]]:
                return set(client.zrange(channel.unacked_index_key, 0, -1, withscores=True))

            def restored() -> bool:
                # It does nothing while a worker that runs does the same. What such a worker has
                # again by now, it has since a later time.
                channel.qos.restore_visible(num=1000, interval=1)
                return not first & handed_out()

            first = handed_out()
            until("the broker has them again", restored)
        return len(first)


def not_finished(app: Celery) -> tuple[int, int]:
    """How many messages lie in the default queue, and how many are not acknowledged."""
    with Connection(app.conf.broker_url) as connection:
        channel: Any = connection.default_channel
        with channel.conn_or_acquire() as client:
            queue = app.conf.task_default_queue
            return int(client.llen(queue)), int(client.hlen(channel.unacked_key))


def work_off(lab: Lab, worker: Worker) -> None:
    """Run *worker*, which is not running, until the broker has nothing left, and stop it.

    A message on its way into a worker is nowhere for a moment, but a worker that has stopped has
    either finished what it had or put it back.
    """
    while True:
        worker.start()
        until("all is done", lambda: not_finished(lab.app) == (0, 0))
        worker.stop()
        if not_finished(lab.app) == (0, 0):
            return
