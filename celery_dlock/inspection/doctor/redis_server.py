"""What a Redis server says of itself, read and not changed, and what one server may get wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import redis

from celery_dlock.inspection.doctor.clock import Clock, Offset, measured
from celery_dlock.inspection.doctor.finding import Finding

OLDEST = (6, 2)

#: Of the configuration, what INFO does not tell. Nothing else is asked for: it has passwords.
_ASKED = ("appendfsync", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class Server:
    """One server: what INFO tells, what CONFIG tells, and by how much its clock is ahead.

    ``refused`` is why CONFIG tells nothing, if it does not.
    """

    info: Mapping[str, Any]
    config: Mapping[str, str]
    offset: Offset
    refused: str = ""

    @classmethod
    def read(cls, client: Any, clock: Clock) -> Self:
        """Ask the server of redis-py's *client*. Raises what redis-py raises."""
        told: dict[str, Any] = client.info()
        offset = measured(clock, lambda: _seconds(client.time()))
        config: dict[str, str] = {}
        try:
            for name in _ASKED:
                config |= client.config_get(name)
        except redis.ResponseError as exc:
            return cls(told, config, offset, str(exc))
        return cls(told, config, offset)

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", str(self.info["redis_version"]))[:3]))

    @property
    def replicas(self) -> int:
        """How many follow it at the moment."""
        return int(self.info.get("connected_slaves", 0))

    @property
    def followers(self) -> list[Mapping[str, Any]]:
        """``ip`` and ``port`` of each of them."""
        return [self.info[f"slave{number}"] for number in range(self.replicas)]

    @property
    def keeps_log(self) -> bool:
        return bool(self.info["aof_enabled"])

    def evicts(self, kept: Kept) -> bool:
        policy = str(self.info["maxmemory_policy"])
        return policy.startswith("allkeys-") or (kept.expires and policy != "noeviction")


@dataclass(frozen=True, slots=True)
class Kept:
    """What a server keeps, and what it means for tasks when the server forgets it.

    Names that never expire are spared by policies that are called ``volatile-``.
    """

    what: str
    forgotten: str
    expires: bool


LOCKS = Kept(
    "locks",
    "a task starts beside one that still runs, messages that wait in the store are lost, and what "
    "is finished may run again",
    expires=True,
)
MESSAGES = Kept("messages", "tasks that were sent never run", expires=False)

#: A check of one server.
Check = Callable[[Server, str, Kept], Iterator[Finding]]


def well_kept(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    """What is wrong with *server*, which keeps *kept*."""
    for check in (_role, _log, _sync, _eviction):
        yield from check(server, where, kept)


def new_enough(server: Server, where: str) -> Iterator[Finding]:
    if server.version < OLDEST:
        yield Finding(
            "redis-version",
            "broken",
            where,
            promise="The store's scripts are refused, so no lock is ever taken.",
            found=f"version {server.info['redis_version']}",
            mend="run Redis 6.2 or later",
        )


def on_time(offset: Offset, where: str) -> Iterator[Finding]:
    """The clock of a server at *where* against that of this host."""
    if offset.wrong:
        yield Finding(
            "clock-skew",
            "weak",
            where,
            promise="Countdowns, expires and max_wait come too early or too late on one of the "
            "hosts, and tokens may go backwards when another server takes over.",
            found=f"its clock is {offset} this host's",
            mend="run NTP (chrony, systemd-timesyncd) on both hosts",
        )


def replica_on_time(client: Any, where: str, clock: Clock) -> Iterator[Finding]:
    """The clock of a server that may be promoted, which redis-py's *client* speaks to."""
    yield from on_time(measured(clock, lambda: _seconds(client.time())), where)


def _role(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    if server.info["role"] != "master":
        yield Finding(
            "redis-role",
            "broken",
            where,
            promise=f"Nothing can be written here, or the master overwrites it: no {kept.what} are "
            "kept.",
            found=f"a replica of {server.info.get('master_host')}:{server.info.get('master_port')}",
            mend="name the master in the URL, or the Sentinels that know it",
        )


def _log(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    if not server.keeps_log:
        yield Finding(
            "redis-aof",
            "broken",
            where,
            promise=f"A restart forgets {kept.what}: {kept.forgotten}.",
            found="appendonly no",
            mend="CONFIG SET appendonly yes, and the same in redis.conf",
        )


def _sync(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    if not server.keeps_log:
        return
    sync = server.config.get("appendfsync")
    if sync is None:
        yield Finding(
            "redis-config",
            "unknown",
            where,
            promise=f"How much of its {kept.what} a power cut takes cannot be said.",
            found=f"CONFIG GET appendfsync is not answered: {server.refused}",
            mend="allow it to the user (ACL SETUSER … +config|get), or look at redis.conf",
        )
    elif sync != "always":
        lost = "up to a second" if sync == "everysec" else "as much as the kernel had not written"
        yield Finding(
            "redis-appendfsync",
            "weak",
            where,
            promise=f"A power cut takes back {lost} of {kept.what}: {kept.forgotten}.",
            found=f"appendfsync {sync}",
            mend="CONFIG SET appendfsync always, and the same in redis.conf (each write then waits "
            "for the disk)",
        )


def _eviction(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    if not server.evicts(kept):
        return
    policy, limit = server.info["maxmemory_policy"], int(server.info["maxmemory"])
    others = [name for name in server.info if re.fullmatch(r"db\d+", name)]
    beside = f"; it has data in {', '.join(others)}" if len(others) > 1 else ""
    yield Finding(
        "redis-eviction",
        "broken" if limit else "weak",
        where,
        promise=f"{'When' if limit else 'Once a maxmemory is set and'} the memory is full it "
        f"throws {kept.what} away: {kept.forgotten}.",
        found=f"maxmemory-policy {policy}, maxmemory {limit}{beside}",
        mend="CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; a cache needs a "
        "server of its own, since this counts for all its databases",
    )


def _seconds(told: tuple[int, int]) -> float:
    return told[0] + told[1] / 1e6
