"""The broker: whether it keeps messages, and for how long it waits for an acknowledgement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.finding import Finding, asked, listed
from celery_dlock.inspection.doctor.locked import Locked
from celery_dlock.inspection.doctor.place import broker_url, place_of
from celery_dlock.inspection.doctor.rabbitmq import examine_rabbitmq
from celery_dlock.tasks.visibility import visibility_timeout

#: Seconds for a broker to be connected to.
PATIENCE = 5


def examine_broker(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    """All that concerns the broker of *case*, whose locked tasks are *tasks*."""
    with case.app.connection_for_read(connect_timeout=PATIENCE) as connection:
        url = broker_url(case.conf)
        scheme = url.partition("://")[0]
        where = f"broker {scheme}://{place_of(url)}"
        yield from _delivered_again(case, tasks, where)
        match connection.transport.driver_type:
            case "redis" if scheme in ("redis", "rediss"):
                # The driver need not be there for other brokers.
                from celery_dlock.inspection.doctor.broker_redis import examine_redis_broker

                yield from asked(where, examine_redis_broker(case, url, where))
            case "amqp":
                yield from examine_rabbitmq(case, tasks, connection, where)
            case "filesystem":
                yield from _files(tasks, where)
            case "memory":
                yield from _memory(where)
            case _:
                yield from _unread(scheme, where)


def _delivered_again(case: Case, tasks: Sequence[Locked], where: str) -> Iterator[Finding]:
    """What comes again because nobody has acknowledged it in time."""
    visible = visibility_timeout(case.app)
    if visible == math.inf:
        return
    yield from _too_long(tasks, visible, where)
    done = case.settings.done_ttl
    if done < 2 * visible:
        yield Finding(
            "broker-done-ttl",
            "broken",
            where,
            promise="A finished task is forgotten while a copy of it can still be delivered: it "
            "runs again.",
            found=f"dlock_done_ttl = {done:g}, and visibility_timeout = {visible:g}",
            mend=f"dlock_done_ttl = {2 * visible:g} or more",
        )


def _too_long(tasks: Sequence[Locked], visible: float, where: str) -> Iterator[Finding]:
    # What is acknowledged early is not delivered again while it runs.
    runs = {t.name: t.longest for t in tasks if t.late and t.longest and t.longest >= visible}
    waits = {t.name: t.countdown for t in tasks if t.countdown >= visible}
    for what, found in (("may run for", runs), ("may retry after", waits)):
        if found:
            longest = max(found.values())
            yield Finding(
                "broker-visibility-timeout",
                "weak",
                where,
                promise="A message is delivered again while the task still has it, and again, "
                "without end: each copy is looked at, put off and dropped at last.",
                found=f"visibility_timeout = {visible:g}; {listed(found)} {what} {longest:g} s",
                mend=f'broker_transport_options = {{"visibility_timeout": {2 * longest:g}}} and '
                f"dlock_done_ttl = {4 * longest:g}",
            )


def _files(tasks: Sequence[Locked], where: str) -> Iterator[Finding]:
    lost = [task.name for task in tasks if not task.kept]
    if lost:
        yield Finding(
            "broker-filesystem",
            "weak",
            where,
            promise="What a killed worker had taken is not delivered again: those tasks never run.",
            found=f"the filesystem transport; {listed(lost)} may be lost",
            mend="on_contention=Queue(keep=True), or a broker with a server",
        )


def _unread(scheme: str, where: str) -> Iterator[Finding]:
    yield Finding(
        "broker-unread",
        "unknown",
        where,
        promise="Whether the broker keeps its messages through a restart was not seen.",
        found=f"the doctor does not read a broker at {scheme}://",
        mend="see on its server; a Redis needs appendonly yes and maxmemory-policy noeviction",
    )


def _memory(where: str) -> Iterator[Finding]:
    yield Finding(
        "broker-memory",
        "weak",
        where,
        promise="Only this process gets its messages, and they end with it.",
        found="the memory transport",
        mend="broker_url = 'amqp://…' or 'redis://…'",
    )
