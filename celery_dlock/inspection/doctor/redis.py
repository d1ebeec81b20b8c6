"""The store on one Redis, and what concerns a master with replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from celery_dlock.backends.copies import Copies
from celery_dlock.backends.redis_client import ANSWER_TIMEOUT, CONNECT_TIMEOUT
from celery_dlock.backends.redis_url import session_of
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.finding import Finding
from celery_dlock.inspection.doctor.place import place_of
from celery_dlock.inspection.doctor.redis_server import (
    LOCKS,
    Server,
    new_enough,
    on_time,
    well_kept,
)

#: What the store waits for if it is not told otherwise: a doctor waits no longer.
BRIEF = {"socket_timeout": ANSWER_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT}


def examine_redis(case: Case) -> Iterator[Finding]:
    """``redis://``, ``rediss://`` and ``redis+unix://``."""
    where = f"store {place_of(case.settings.url)}"
    driver = brief(case.settings.backend_options)
    with closing(session_of(case.settings.url, driver)) as session, session:
        server = Server.read(session.client, case.clock)
    yield from one_store(server, where)
    yield from copied(server, where, case.settings.wait_replicas)


def brief(driver: Mapping[str, Any]) -> dict[str, Any]:
    """redis-py's options *driver*, with no more time to answer than is usual."""
    return {**driver, **BRIEF}


def one_store(server: Server, where: str) -> Iterator[Finding]:
    """What is wrong with a server that keeps locks."""
    yield from new_enough(server, where)
    yield from well_kept(server, where, LOCKS)
    yield from on_time(server.offset, where)


def copied(server: Server, where: str, copies: Copies | None) -> Iterator[Finding]:
    """Whether a hold is known to the replicas of the master *server* before its body starts."""
    if copies is None:
        if server.replicas:
            yield Finding(
                "redis-replicas",
                "weak",
                where,
                promise="A replica that is promoted may not know who holds a key: a second task "
                "starts beside the first, and messages that wait are lost.",
                found=f"{server.replicas} connected replicas, and dlock_wait_replicas is not set",
                mend="dlock_wait_replicas = 1; while fewer follow no lock is taken, so have two",
            )
    elif server.replicas < copies.replicas:
        yield Finding(
            "redis-too-few-replicas",
            "broken",
            where,
            promise="No lock is taken: a hold counts when so many replicas have it.",
            found=f"dlock_wait_replicas asks for {copies.replicas}, "
            f"{server.replicas} are connected",
            mend=f"start more replicas, or dlock_wait_replicas = {server.replicas or None}",
        )
    if copies is not None and copies.on_disk and server.version < (7, 2):
        yield Finding(
            "redis-waitaof",
            "broken",
            where,
            promise="No lock is taken: this server has no WAITAOF.",
            found=f"version {server.info['redis_version']}, and dlock_wait_replicas has aof: True",
            mend='run Redis 7.2 or later, or dlock_wait_replicas = {"replicas": '
            f"{copies.replicas}}}",
        )
