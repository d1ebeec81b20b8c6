"""The broker on Redis: whether the server keeps messages, and what else lies there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

from celery_dlock.backends.redis_url import session_of
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.finding import Finding
from celery_dlock.inspection.doctor.redis import brief
from celery_dlock.inspection.doctor.redis_server import MESSAGES, Server, on_time, well_kept


def examine_redis_broker(case: Case, url: str, where: str) -> Iterator[Finding]:
    """The broker at *url*."""
    tls = case.conf.broker_use_ssl
    options = brief(tls if isinstance(tls, dict) else {})
    with closing(session_of(for_redis_py(url), options)) as session, session:
        server = Server.read(session.client, case.clock)
    yield from well_kept(server, where, MESSAGES)
    yield from on_time(server.offset, where)
    yield from _shared_database(case, url, where)


def _shared_database(case: Case, url: str, where: str) -> Iterator[Finding]:
    if database(url) == database(case.settings.url):
        yield Finding(
            "broker-shared-database",
            "weak",
            where,
            promise="Who empties the broker (FLUSHDB) frees every lock, and loses what waits.",
            found="dlock_url names the same database",
            mend="give the locks a database of their own: another number at the end of dlock_url",
        )


def for_redis_py(url: str) -> str:
    """*url*, with what kombu has other words for."""
    return re.sub(r"(?<=ssl_cert_reqs=)CERT_\w+", lambda word: word[0][5:].lower(), url)


def database(url: str) -> tuple[str | None, int, str] | None:
    """Host, port and number of a database; ``None`` for a URL that names another thing."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        return None
    return parts.hostname, parts.port or 6379, parts.path.strip("/") or "0"
