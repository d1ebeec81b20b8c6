"""The fence for data that is kept in Redis: the check is part of the transaction that writes.

Redis cannot roll back. So nothing may be queued before the check, and the check must still hold
when the queue is executed. WATCH does that: the fence and the mark of *once* are watched and read,
and the same EXEC that writes also sets them. It does nothing if another client has changed them.

A reply to EXEC may be lost. Each transaction sets a nonce of its own, so the next read shows
whether it was executed, and it is not written twice.

Fences and marks expire, because counters that stay for ever fill a Redis. After a fence has expired
a late write passes only until a newer holder writes again, because tokens only grow.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import Pipeline
from redis.cluster import RedisCluster
from redis.exceptions import AskError, MovedError, TryAgainError

from celery_dlock.core.lease import Lease
from celery_dlock.errors import ConfigurationError, StaleFencingToken
from celery_dlock.fencing.fence import Pass, only_key, require_own_name, require_text, shown
from celery_dlock.locks.current import current_lease

__all__ = ["KEPT", "mint", "transaction"]

#: For how many seconds after a write its fence and its mark are kept: seven days.
KEPT = 7 * 24 * 60 * 60

#: So often somebody else may come in between; the lock keeps that rare.
ATTEMPTS = 100

#: Seconds to wait, again and again, for a Cluster's slot that is on its way to another master.
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0)

Write = Callable[[Any], object]

#: As the lock store does: larger than the last one, and than any that was forgotten.
MINT = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, now)
redis.call('SET', KEYS[1], string.format('%.0f', token), 'EX', ARGV[1])
return token
"""


def transaction(
    client: Any,
    write: Write,
    lease: Lease | None = None,
    *,
    once: str | tuple[str, str] | None = None,
    resource: str | None = None,
    fencing_token: int | None = None,
    owner: str | None = None,
) -> bool:
    """Write unless a newer token has written: ``True``, or ``False`` if *once* is done already.

    *write* is called with a watching pipeline, as by ``Redis.transaction``. First it reads, and
    gets the answers at once. Then it calls ``pipe.multi()``, and its further commands are queued.
    It may be called again, if another client came in between. This function executes the pipeline,
    together with the fence.

    It checks the same keys as :func:`celery_dlock.fencing.admit`. *once* names an effect within the
    key, as :func:`celery_dlock.fencing.once` does: it is done once in :data:`KEPT` seconds. With
    several keys *once* is the pair of the key that the effect belongs to and its name.

    It costs three round trips, and those of what *write* reads. Raises
    :exc:`~celery_dlock.StaleFencingToken` for an older token,
    :exc:`~celery_dlock.ConfigurationError` for a *write* that breaks these rules, and
    :exc:`redis.WatchError` if other clients came in between a hundred times. If a slot of a Cluster
    is half moved it waits for five seconds, and then raises :exc:`redis.exceptions.TryAgainError`.
    After an error of the driver the write may have happened: *once* makes it safe to repeat.
    """
    gate = _Gate(shown(lease, resource, fencing_token, owner), once)
    moved: MovedError | None = None
    pauses = iter(PAUSES)
    for _ in range(ATTEMPTS):
        try:
            with _server(client, gate.names[0], moved).pipeline(transaction=True) as pipe:
                return gate.passed(pipe, write)
        except redis.WatchError:
            continue
        except (AskError, TryAgainError, redis.ConnectionError) as exc:
            if not _is_cluster(client):
                raise
            client.nodes_manager.initialize()
            if isinstance(exc, redis.ConnectionError):
                raise
            if isinstance(exc, MovedError):  # it is an AskError
                moved = exc
            else:
                _wait(gate.names, pauses, exc)
    raise redis.WatchError(f"{gate.names}: others came in between {ATTEMPTS} times")


def mint(client: Any, resource: str, lease: Lease | None = None) -> int:
    """Have this Redis itself issue a fencing token, independent of the lock store.

    *lease* (by default the innermost current one) is checked after the counter was raised, so a
    later holder of the lock gets a larger token. Show it with each write: ``transaction(client,
    write, resource=resource, fencing_token=token, owner=lease.owner)``.

    *resource* must be another name than a key of *lease*, because the tokens of the lock are other
    numbers. One round trip. Raises :exc:`~celery_dlock.LockLost` if the lock can no longer be
    trusted, and :exc:`~celery_dlock.ConfigurationError` for a key of *lease*.
    """
    lease = current_lease() if lease is None else lease
    require_own_name(resource, lease)
    _require_client(client)
    token = int(client.eval(MINT, 1, f"dlock_minted:{_tag(resource)}", KEPT))
    lease.check()
    return token


class _Gate:
    """One call's fences and mark, and what it writes there."""

    def __init__(self, passes: Sequence[Pass], once: str | tuple[str, str] | None) -> None:
        self._passes = passes
        self._nonce = uuid.uuid4().hex
        self.names = [_fence_name(own.resource) for own in passes]
        self._mark: str | None = None
        if once is not None:
            if isinstance(once, str):
                once = (only_key(_key(own.resource) for own in passes), once)
            resource, effect_id = once
            require_text("once", effect_id)
            require_text("once", resource)
            self._mark = f"dlock_once:{_tag(resource)}:{effect_id}"
            self.names.append(self._mark)

    def passed(self, pipe: Any, write: Write) -> bool:
        """Look, let *write* queue, execute; ``False`` if the effect is done."""
        pipe.watch(*self.names)
        values = [_parse(pipe, value) for value in pipe.mget(self.names)]
        if any(value and value.nonce == self._nonce for value in values):
            return True
        for own, value in zip(self._passes, values, strict=False):
            if value and not value.lets_pass(own):
                raise StaleFencingToken(own.resource, own.token, value.token)
        if self._mark is not None and values[-1]:
            return False
        _queue(pipe, write)
        for own, name in zip(self._passes, self.names, strict=False):
            pipe.set(name, f"{own.token} {self._nonce} {own.owner}", ex=KEPT)
        if self._mark is not None:
            pipe.set(self._mark, f"0 {self._nonce} {self._passes[0].owner}", ex=KEPT)
        pipe.execute()
        return True


@dataclass(frozen=True, slots=True)
class _Value:
    """What stands at a fence, or in a mark."""

    token: int
    nonce: str
    owner: str

    def lets_pass(self, own: Pass) -> bool:
        """One holder writes many times; after a loss of data two can have the same token."""
        return self.token < own.token or (self.token, self.owner) == (own.token, own.owner)


def _wait(names: Sequence[str], pauses: Iterator[float], error: Exception) -> None:
    """A while, for a slot that is half moved.

    An ASK is not followed: what is read where the slot is going may still be where it comes from,
    and would be taken for missing.
    """
    pause = next(pauses, None)
    if pause is None:
        raise TryAgainError(f"{names}: their slot is half moved") from error
    time.sleep(pause)


def _parse(pipe: Any, value: Any) -> _Value | None:
    if value is None:
        return None
    token, nonce, owner = pipe.get_encoder().decode(value, force=True).split(" ", 2)
    return _Value(int(token), nonce, owner)


def _queue(pipe: Any, write: Write) -> None:
    write(pipe)
    if not pipe.watching:
        raise ConfigurationError(
            "write(pipe) has executed or unwatched the pipeline: the fence was not part of that. "
            "Queue after pipe.multi(), and return"
        )
    if not pipe.explicit_transaction:
        raise ConfigurationError(
            "write(pipe) has not called pipe.multi(): what it wrote, it wrote unfenced. Read "
            "first, then call pipe.multi(), then queue what is to be written"
        )


def _server(client: Any, name: str, moved: Any) -> Any:
    """The client of the one server that has *name*, as far as is known.

    redis-py's own transactions on a Cluster are of no use: when a connection breaks they are sent
    again over another one, which watches nothing.
    """
    _require_client(client)
    if not _is_cluster(client):
        return client
    node = client.get_node(host=moved.host, port=moved.port) if moved else None
    return client.get_redis_connection(node or client.get_node_from_key(name))


def _require_client(client: object) -> None:
    fits = isinstance(client, redis.Redis) and not isinstance(client, Pipeline)
    if not fits and not _is_cluster(client):
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(f"cannot fence a {kind}: pass the redis.Redis that has the data")


def _is_cluster(client: object) -> bool:
    return isinstance(client, RedisCluster)


def _fence_name(resource: str) -> str:
    return f"dlock_fence:{_tag(resource)}{resource[len(_key(resource)) :]}"


def _tag(resource: str) -> str:
    """The part of a name by which a Cluster deals it out: the key, whatever the slot."""
    if set("{}") & set(resource):
        raise ConfigurationError(f"a resource in Redis has no braces, as in {resource!r}")
    return f"{{{_key(resource)}}}"


def _key(resource: str) -> str:
    return resource.partition("#")[0]
