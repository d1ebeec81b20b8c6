"""The store on etcd: its members, its alarms, and whether they wait for the disk and compact."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any

from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops.doctor.finding import (
    Case,
    Finding,
    asked,
    measured,
    on_time,
    quorum_size,
    unavailable,
)
from celery_dlock.stores.etcd.address import Address, address_of
from celery_dlock.stores.etcd.client import Connection, EtcdClient, NotConnected, rpc
from celery_dlock.stores.etcd.names import Names

#: Seconds for a member to answer.
MEMBER_TIMEOUT = 5.0

#: So many revisions, some 7 MB of locks, are more than a compaction of every hour would leave to a
#: store that is little used; one that is much used reaches them soon.
PILED_UP = 20_000

#: Bytes of its log that no member writes between two waits for the disk, on the average, if it
#: waits at all: it does so for each batch. One that does not wait still does at its start.
UNSYNCED = 2**20

_SYNCED = re.compile(r"^etcd_disk_wal_fsync_duration_seconds_count (\S+)$", re.MULTILINE)
_WRITTEN = re.compile(r"^etcd_disk_wal_write_bytes_total (\S+)$", re.MULTILINE)

#: What the clock of a member's host means for tasks.
_WAITS = (
    "Waiting times are measured with the clocks of the workers' hosts. With a wrong clock a task "
    "gives up, or is woken again, too early or too late."
)

_COMPACTED = "required revision has been compacted"


def examine_etcd(case: Case) -> Iterator[Finding]:
    """``etcd://`` and ``etcd+https://``."""
    address = address_of(case.settings.url, case.settings.backend_options)
    where = address.place
    there = [endpoint for endpoint in address.endpoints if _answers(address, endpoint)]
    yield from unavailable("etcd", address.endpoints, there, where)
    if not there:
        return
    with closing(EtcdClient(address)) as client:
        status = client.call("Status", rpc.StatusRequest(), repeats=True)
        yield from version(str(status.version), where)
        yield from asked(where, _alarms(client, where))
        yield from asked(where, _members(client, where))
        yield from asked(where, _piling_up(client, case.settings.key_prefix, where, PILED_UP))
    for endpoint in there:
        at = f"member {endpoint}"
        yield from asked(at, _member(address, case, endpoint, at))


def _answers(address: Address, endpoint: str) -> bool:
    connection = Connection(address, endpoint)
    try:
        connection.open(MEMBER_TIMEOUT)
    except NotConnected:
        return False
    connection.close()
    return True


def version(text: str, where: str) -> Iterator[Finding]:
    """What is known of etcd *text*, as in ``"3.5.13"``."""
    number = tuple(map(int, re.findall(r"\d+", text)[:3]))
    refused = number < (3, 4)
    if refused or number < (3, 4, 31) or (3, 5) <= number < (3, 5, 13):
        yield Finding(
            "etcd-version",
            "broken" if refused else "weak",
            where,
            promise="Its API is not the one that the store uses."
            if refused
            else "A leader that was paused may end leases that its successor has renewed (etcd "
            "issue 15247): two tasks hold one key for some seconds.",
            found=f"version {text}",
            fix="run etcd 3.4.31, 3.5.13 or later",
        )


def _alarms(client: EtcdClient, where: str) -> Iterator[Finding]:
    answer = client.call("Alarm", rpc.AlarmRequest(), repeats=True)  # GET is the default action
    names = sorted({rpc.AlarmType.Name(alarm.alarm) for alarm in answer.alarms})
    if names:
        yield Finding(
            "etcd-alarm",
            "broken",
            where,
            promise="It refuses writes: no lock is taken, and held locks expire.",
            found=f"alarm {', '.join(names)}",
            fix="compact and defragment (etcdctl compaction REVISION, etcdctl defrag), then "
            "etcdctl alarm disarm; replace a member with CORRUPT",
        )


def _members(client: EtcdClient, where: str) -> Iterator[Finding]:
    answer = client.call("MemberList", rpc.MemberListRequest(), repeats=True)
    members: Sequence[Any] = answer.members
    yield from quorum_size("etcd", len(members), where)


def _piling_up(client: EtcdClient, prefix: str, where: str, most: int) -> Iterator[Finding]:
    """Whether more than *most* revisions were written and the first is still there."""
    # What begins like that a user of the store may read.
    request = rpc.RangeRequest(key=Names(prefix).root, revision=1, count_only=True)
    try:
        answer = client.call("Range", request, repeats=True)
    except BackendUnavailable as exc:
        if _COMPACTED in str(exc):
            return
        raise
    if answer.header.revision > most:
        yield Finding(
            "etcd-compaction",
            "weak",
            where,
            promise="Each lock leaves two revisions. When --quota-backend-bytes is reached the "
            "store refuses writes.",
            found=f"{answer.header.revision} revisions, and none was ever compacted",
            fix="start every member with --auto-compaction-retention=1h",
        )


def _member(address: Address, case: Case, endpoint: str, where: str) -> Iterator[Finding]:
    context = _context(case) if address.tls else None
    url = f"{'https' if address.tls else 'http'}://{endpoint}/metrics"
    figures = ""

    def date() -> float:
        nonlocal figures
        with urllib.request.urlopen(url, timeout=MEMBER_TIMEOUT, context=context) as answer:
            figures = answer.read().decode()
            return parsedate_to_datetime(answer.headers["Date"]).timestamp()

    offset = measured(case.clock, date, unit=1.0)  # the clock is told in whole seconds
    written, synced = _figure(_WRITTEN, figures), _figure(_SYNCED, figures)
    if written > UNSYNCED * max(synced, 1):
        yield Finding(
            "etcd-fsync",
            "broken",
            where,
            promise="A power cut loses confirmed writes: two tasks hold one key, and tokens go "
            "backwards.",
            found=f"{written:.0f} bytes of its log were written with {synced:.0f} waits "
            "for the disk",
            fix="start it without --unsafe-no-fsync",
        )
    yield from on_time(offset, where, _WAITS)


def _context(case: Case) -> ssl.SSLContext:
    """The files of the driver's options; they were read before, when the address was."""
    given = case.settings.backend_options
    context = ssl.create_default_context(cafile=given.get("ca_cert"))
    if given.get("cert_cert"):
        context.load_cert_chain(given["cert_cert"], given["cert_key"])
    return context


def _figure(pattern: re.Pattern[str], figures: str) -> float:
    found = pattern.search(figures)
    if found is None:
        raise LookupError("its figures are not those of an etcd")
    return float(found[1])
