"""Which checks an application needs: those of its store, of its broker, and of its tasks.

No password is in what the doctor shows, and none should be in what Celery shows to whoever asks.
What a server said may quote one, or bring a terminal to do things.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, unquote

from celery_dlock.errors import ConfigurationError
from celery_dlock.ops.doctor.broker import examine_broker
from celery_dlock.ops.doctor.finding import (
    SEVERITIES,
    Broken,
    Case,
    Checks,
    Clock,
    Finding,
    Unknown,
    Weak,
    asked,
    judged,
)
from celery_dlock.ops.doctor.local import ONE_PROCESS
from celery_dlock.ops.doctor.lock import examine_lock
from celery_dlock.ops.doctor.tasks import Locked, examine_tasks
from celery_dlock.registry import BACKENDS, load, scheme_of
from celery_dlock.runtime import runtime
from celery_dlock.worker.startup import check_broker, check_countdowns, check_leases

_LOGIN = re.compile(r"://([^:@]*):(.*)@")
_SECRET = re.compile(r"pass|secret|token|credential|api_?key", re.IGNORECASE)

#: The settings that the doctor reads and that may have a password.
_READ = (
    *("dlock_url", "broker_url", "broker_read_url", "broker_write_url", "result_backend"),
    *("dlock_backend_options", "broker_transport_options", "result_backend_transport_options"),
    *("broker_password", "redis_password", "dlock_history"),
)


def secrets_of(conf: Any, names: Iterable[str] = _READ) -> frozenset[str]:
    """Every password in the settings of these *names*, as it is written and as it is sent."""
    secrets = (secret for name in names for secret in _in_value(name, conf.get(name)))
    return frozenset(secrets) - {""}


def shown(finding: Finding, secrets: Iterable[str]) -> Finding:
    """*finding* as it may be shown. What it promises is our own text."""
    hidden = sorted(secrets, key=len, reverse=True)

    def plain(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, "***")
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)

    return replace(
        finding,
        where=plain(finding.where),
        found=plain(finding.found),
        fix=plain(finding.fix),
    )


def _in_value(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _in_value(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _in_value(name, inner)
    elif isinstance(value, str):
        yield from _in_url(value)
        if _SECRET.search(name):
            yield value


def _in_url(text: str) -> Iterator[str]:
    for url in (text, *text.split(";")):
        for _, password in _LOGIN.findall(url):
            yield password
            yield unquote(password)
        query = url.partition("?")[2].partition("#")[0]
        yield from (value for name, value in parse_qsl(query) if _SECRET.search(name))


SETTINGS: Checks[Exception] = {
    "settings": Broken(
        lambda error: (
            error if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        ),
        "{}",
        promise="No worker starts. The other checks run once this is fixed.",
        fix="change the setting or the task that the message names",
    )
}

#: Of the scheme of the store's URL.
STORE: Checks[str] = {
    "store-unread": Unknown(
        lambda scheme: scheme not in BACKENDS and scheme,
        "the doctor has no checks for {}://",
        promise="It is not known whether the store is configured well.",
        fix="see the documentation of that store",
    )
}

#: Of a worker's pool, and why nobody can see what a process counts that serves nothing.
METRICS: Checks[tuple[str, list[str]]] = {
    "metrics-directory": Weak(
        lambda facts: facts[0] not in ONE_PROCESS and facts[1] and (facts[0], facts[1][0]),
        "worker_pool = {0[0]!r}, and {0[1]}",
        promise="Nobody sees the counters of workers, and no alert on them ever fires.",
        fix="name an empty folder in PROMETHEUS_MULTIPROC_DIR, for all processes of this host",
    )
}

#: Of a setting as Celery shows it, and the passwords in it.
REPORTED: Checks[tuple[str, frozenset[str]]] = {
    "password-reported": Weak(
        lambda setting: any(secret in setting[0] for secret in setting[1]),
        "a password under a name, or in a list, where Celery does not hide it",
        promise="Anyone with access to the broker can read a password with `celery inspect conf`. "
        "It is also in `celery report`, which goes into bug reports.",
        fix="put it into the URL, which is hidden, or in a dict under a name with 'password' or "
        "'secret' in it",
    )
}


def examine_report(case: Case) -> Iterator[Finding]:
    """Celery hides settings by their names, and looks into dicts for more, but not into lists."""
    for name, value in case.conf.table().items():
        if "dlock_" in name.lower():
            yield from judged(REPORTED, (repr(value), secrets_of(case.conf, [name])), name)


def examine(app: Any, clock: Clock = time.time, *, read_only: bool = False) -> list[Finding]:
    """What breaks a promise in the configuration of *app*, the worst first, what is waived last.

    Takes and releases locks of its own, and declares the queues for woken messages, unless it is
    to *read_only*. What cannot be looked at is a finding, too; there is no password in any.
    """
    secrets = secrets_of(app.conf)
    findings = [shown(finding, secrets) for finding in _examine(app, clock, read_only)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return sorted(findings, key=lambda finding: bool(finding.waived))


def _examine(app: Any, clock: Clock, read_only: bool) -> Iterator[Finding]:
    try:
        app.loader.import_default_modules()
        app.finalize()
        locks = runtime(app)
        check_leases(app, locks)
        check_broker(locks)
        check_countdowns(app)
    except Exception as exc:  # a sink that cannot be imported, a task that is defined wrongly
        yield from judged(SETTINGS, exc, "settings")
        return
    case = Case(app, locks.settings, clock, read_only)
    tasks = Locked.all_of(case)
    parts = (
        _store(case),
        asked("settings", examine_report(case)),
        judged(METRICS, (str(case.conf.worker_pool), locks.sinks.unseen()), "dlock_sinks"),
        asked("broker", examine_broker(case, tasks)),
        asked("tasks", examine_tasks(case, tasks)),
    )
    for finding in chain.from_iterable(parts):
        yield replace(finding, waived=locks.settings.doctor_ignore.get(finding.check, ""))


def _store(case: Case) -> Iterator[Finding]:
    """A lock is tried where nothing else is broken, unless that is waived: it may be the cause."""
    findings = list(asked("store", _configuration(case)))
    yield from findings
    waived = case.settings.doctor_ignore
    if not case.read_only and not any(
        finding.severity == "broken" and finding.check not in waived for finding in findings
    ):
        heard = "\n".join(finding.found for finding in findings)
        yield from asked("store", examine_lock(case, heard))


def _configuration(case: Case) -> Iterator[Finding]:
    scheme = scheme_of(case.settings.url)
    yield from judged(STORE, scheme, "store")
    if scheme in BACKENDS:
        provided = BACKENDS[scheme]
        yield from load(provided.checks, provided.extra, "the doctor")(case)
