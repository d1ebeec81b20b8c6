"""Commands to a Redis Cluster: each goes to the master that has its key, to all at the same time.

redis-py's ``RedisCluster`` keeps the map of the slots. Its own pipelines cannot be used: they
refuse scripts, and repeat one by one what timed out, so that one master that hangs would keep the
leases of all others from being renewed.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis
import redis.cluster
from redis.exceptions import AskError, ClusterDownError, SlotNotCoveredError, TryAgainError

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import Copies
from celery_dlock.stores.redis.client import (
    Again,
    RedisSession,
    Servers,
    checked,
    in_one_flight,
    pool_options,
    run,
    spell_cert_reqs,
    trusts_anyone,
    try_options,
)
from celery_dlock.stores.redis.scripts import Command, key_of_command

#: Half of their types is unknown.
RedisCluster: Any = redis.cluster.RedisCluster
ClusterNode: Any = redis.cluster.ClusterNode

CLUSTER_PORT = 6379

#: Another master has the slot (a MovedError is an AskError), will have it in a moment, or was not
#: reached. A timeout is not among them: the caller has waited long enough, and decides.
ASTRAY = (AskError, TryAgainError, ClusterDownError, SlotNotCoveredError, redis.ConnectionError)

#: A part of what was asked for is at this master, and the rest at the next one or nowhere.
MOVING = (AskError, TryAgainError)

#: Commands that read one key, which is at one master or the other.
READS = ("HGETALL", "HMGET", "ZCARD", "ZRANGE", "ZSCAN")

SILENCE = (redis.ConnectionError, redis.TimeoutError)

#: Seconds to wait before each new look at the map.
PAUSES = (0.0, 0.05, 0.2)


class ClusterSession(RedisSession):
    """The map is drawn when the first command needs it, and again when one goes astray."""

    def __init__(self, servers: Servers, options: Mapping[str, Any]) -> None:
        super().__init__(None, f"the cluster of {servers}", [options.get("password")])
        self._servers = servers
        self._options = options
        self._mutex = threading.Lock()

    def run(self, command: Command, again: Again | None = None) -> Any:
        return checked(self._each([command], None, again))[0]

    def each(self, commands: Sequence[Command], copies: Copies | None = None) -> list[Any]:
        return self._each(commands, copies, None)

    def _each(
        self, commands: Sequence[Command], copies: Copies | None, again: Again | None
    ) -> list[Any]:
        """Those that went astray are sent again; as *again*, a single one whose answer was lost."""
        cluster = self._cluster()
        answers = _fly(cluster, commands, copies)
        for pause in PAUSES:
            silent = [c for c, a in zip(commands, answers, strict=True) if isinstance(a, SILENCE)]
            astray = [n for n, answer in enumerate(answers) if isinstance(answer, ASTRAY)]
            if silent or astray:
                time.sleep(pause)
                _draw_again(cluster, silent)
            if not astray:
                break
            if again and silent:
                commands = [again()]
            later = _fly(cluster, [commands[n] for n in astray], copies)
            for n, answer in zip(astray, later, strict=True):
                answers[n] = answer
        return answers

    def describe(self, error: BaseException) -> str:
        if isinstance(error, MOVING):
            return f"Redis at {self._place}: a slot is moving to another master"
        return super().describe(error)

    def owners(self, names: Sequence[str]) -> list[str]:
        """The master that has each of *names*, as the cluster says now."""
        cluster = self._cluster()
        _draw_again(cluster, [])
        return [str(cluster.get_node_from_key(name).name) for name in names]

    def ask(self, master: str, command: Command) -> Any:
        """What *master* answers, which is among the owners."""
        cluster = self._cluster()
        return run(cluster.get_redis_connection(cluster.get_node(node_name=master)), command)

    def close(self) -> None:
        with self._mutex:
            cluster, self.client = self.client, None
        if cluster is not None:
            cluster.close()

    def _cluster(self) -> Any:
        with self._mutex:
            if self.client is None:
                nodes = [ClusterNode(*address) for address in self._servers.addresses]
                self.client = RedisCluster(startup_nodes=nodes, **self._options)
            return self.client


def _fly(cluster: Any, commands: Sequence[Command], copies: Copies | None) -> list[Any]:
    """One attempt: a pipeline to each master concerned."""
    answers: list[Any] = [None] * len(commands)
    flights: dict[str, tuple[Any, list[int]]] = {}
    for n, command in enumerate(commands):
        try:
            node = cluster.get_node_from_key(key_of_command(command))
        except SlotNotCoveredError as exc:
            answers[n] = exc
        else:
            flights.setdefault(node.name, (node, []))[1].append(n)

    def fly(node: Any, places: list[int]) -> None:
        try:
            client = cluster.get_redis_connection(node)
            replies = in_one_flight(client, [commands[n] for n in places], copies)
        except Exception as exc:  # it is raised, or not, where the answer is looked at
            replies = [exc] * len(places)
        for n, answer in zip(places, replies, strict=True):
            referred = type(answer) is AskError and commands[n][0] in READS
            answers[n] = _of_the_next(cluster, commands[n], answer) if referred else answer

    # One node is asked by this thread, each other one by a thread of its own.
    flying = list(flights.values())
    threads = [threading.Thread(target=fly, args=flight, daemon=True) for flight in flying[1:]]
    for thread in threads:
        thread.start()
    for node, places in flying[:1]:
        fly(node, places)
    for thread in threads:
        thread.join()
    return answers


def _of_the_next(cluster: Any, command: Command, error: Any) -> Any:
    """What the master says to which *error* refers, and which has what is not at the first one.

    Until that one can be asked there is no answer but this error.
    """
    try:
        node = cluster.get_node(host=error.host, port=error.port)
        client = cluster.get_redis_connection(node)
        return in_one_flight(client, [("ASKING",), command], None)[1]
    except Exception:
        return error


def _draw_again(cluster: Any, silent: Sequence[Command]) -> None:
    """Ask for the map, and not those who had nothing to say to the commands *silent*."""
    nodes = cluster.nodes_manager.startup_nodes
    gone = {cluster.get_node_from_key(key_of_command(command)).name for command in silent}
    skipped = {name: nodes.pop(name) for name in gone & nodes.keys() if len(nodes) > 1}
    try:
        cluster.nodes_manager.initialize()
    finally:
        nodes.update(skipped)


def session_of_cluster(url: str, driver: Mapping[str, Any]) -> RedisSession:
    """A session with the cluster at *url* with redis-py's options *driver*, not connected.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` for what can be known to be wrong.
    """
    servers = Servers.of(url, CLUSTER_PORT)
    if servers.path not in ("", "0"):
        raise ConfigurationError("a Redis Cluster has one database: redis+cluster:// takes no path")
    options = {**pool_options(driver), **servers.options, "require_full_coverage": False, **driver}
    # What becomes of a command that went astray is decided here, not by redis-py.
    options = {name: value for name, value in options.items() if not name.startswith("retry")}
    spell_cert_reqs(options)
    _refuse_unchecked(options)
    own = inspect.signature(RedisCluster.__init__).parameters
    try_options(redis.Redis, {name: value for name, value in options.items() if name not in own})
    return ClusterSession(servers, options)


def _refuse_unchecked(options: Mapping[str, Any]) -> None:
    """redis-py before 6 has a cluster's certificates be those of any host, and drops the option."""
    connection: Any = redis.SSLConnection
    usual = inspect.signature(connection).parameters["ssl_check_hostname"]
    if options.get("ssl") and not usual.default and not trusts_anyone(options):
        raise ConfigurationError(
            "redis+cluster:// with TLS needs redis 6 or later: before it redis-py does not check "
            "the host name in a certificate there"
        )
