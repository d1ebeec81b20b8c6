"""Calls to whichever member of an etcd answers, with a token that is fetched anew when it has gone.

etcd3 knows one member, and one token for ever. Here a member that fails is left for the next one.
A request that *repeats* is sent to that one at once; any other only if it was surely not taken,
and else its fate is unknown. The time for an answer is that of all attempts together.

A call that fails may have happened all the same. It has not if it found no connection to go out
on, or if the member refused it: those are told apart here, because they may be sent again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.etcd.address import Address
from celery_dlock.stores.etcd.protobuf import import_etcdrpc

rpc: Any = import_etcdrpc()

#: Seconds that a member may take to be connected to, before another one is asked.
CONNECT_TIMEOUT = 2.0

#: A member without a leader refuses at once, instead of keeping the call until it times out.
_METADATA = (("hasleader", "true"),)

_OPTIONS = {
    "grpc.max_receive_message_length": -1,  # of 4 MiB; a page of waiting messages may have more
    "grpc.use_local_subchannel_pool": 1,  # a connection that hangs is not handed to the next one
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,  # of two minutes in which every call would fail
    "grpc.service_config_disable_resolution": 1,
    "grpc.enable_retries": 0,  # of gRPC's own, which keep a copy of each request for it
}

#: Seconds until members that have lost their leader are asked again.
ELECTION_PAUSE = 0.1


class NotConnected(ConnectionError):
    """The request reached nobody."""


class LeaseGone(Exception):
    """Nothing happened: a lease in the request has expired."""


class RowGone(Exception):
    """Nothing happened: a row that was to be changed is not there."""


class EtcdClient:
    """One process's calls. Safe to share between threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._mutex = threading.Lock()  # nobody waits for an answer inside
        self._opening = threading.Lock()
        self._connection: Connection | None = None
        # Processes begin with different members, and so share them out.
        self._at = os.getpid() % len(address.endpoints)
        self._token: str | None = None

    @property
    def place(self) -> str:
        """For messages."""
        return self._address.place

    def call(self, name: str, request: Any, *, repeats: bool) -> Any:
        """The answer to *request*.

        Raises :exc:`LeaseGone` and :exc:`RowGone`, and
        :exc:`~celery_dlock.errors.BackendUnavailable` when nobody answered.
        """
        try:
            return self._ask_all(name, request, repeats)
        except NotConnected as exc:
            raise BackendUnavailable(f"{self._address.place}: {exc}") from exc
        except grpc.RpcError as exc:
            if _has_no_lease(exc):
                raise LeaseGone from exc
            if _has_no_row(exc):
                raise RowGone from exc
            raise BackendUnavailable(f"{self._address.place}: {_details(exc)}") from exc
        except ValueError as exc:  # gRPC's word for a channel that another thread has closed
            raise BackendUnavailable(f"{self._address.place}: {exc}") from exc

    def close(self) -> None:
        """Close the connection; the next call opens one again."""
        with self._mutex:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask_all(self, name: str, request: Any, repeats: bool) -> Any:
        """The answer of the first member who has one."""
        now = time.monotonic()
        until = now + self._address.timeout
        while True:
            failed: Exception = NotConnected("nobody was asked")
            electing = False
            for left in range(len(self._address.endpoints), 0, -1):
                seconds = (until - now) / (left if repeats else 1)
                try:
                    return self._ask(name, request, now + seconds)
                except NotConnected as exc:
                    failed = exc
                except grpc.RpcError as exc:
                    if not (_was_refused(exc) or (repeats and _another_may_know(exc))):
                        raise
                    electing = electing or _has_no_leader(exc)
                    failed = exc
                now = time.monotonic()
            if not electing or now + ELECTION_PAUSE > until:
                raise failed
            time.sleep(ELECTION_PAUSE)
            now = time.monotonic()

    def _ask(self, name: str, request: Any, until: float) -> Any:
        """Ask the member whose turn it is; when it does not answer, it is the next one's."""
        connection = self._connection or self._connected(until)
        token = None if self._address.user is None else self._token_for(connection, until)
        try:
            try:
                return connection.call(name, request, until - time.monotonic(), token)
            except grpc.RpcError as exc:
                if token is None or not _wants_token(exc):
                    raise
            token = self._token_for(connection, until, instead_of=token)
            return connection.call(name, request, until - time.monotonic(), token)
        except grpc.RpcError as exc:
            if _another_may_know(exc):
                self._leave(connection)
            raise

    def _connected(self, until: float) -> Connection:
        """A connection to the member whose turn it is."""
        if not self._opening.acquire(timeout=max(0.0, until - time.monotonic())):
            raise NotConnected("no connection in time")
        try:
            with self._mutex:
                if self._connection is not None:
                    return self._connection
                endpoint = self._address.endpoints[self._at]
            connection = Connection(self._address, endpoint)
            try:
                connection.open(min(until - time.monotonic(), CONNECT_TIMEOUT))
            except NotConnected:
                self._next()
                raise
            with self._mutex:
                self._connection = connection
            return connection
        finally:
            self._opening.release()

    def _leave(self, connection: Connection) -> None:
        """Go on with the next member, unless another thread has gone on already.

        It is not closed: calls of other threads may still be answered on it.
        """
        with self._mutex:
            if self._connection is not connection:
                return
            self._connection = None
        self._next()

    def _next(self) -> None:
        self._at = (self._at + 1) % len(self._address.endpoints)

    def _token_for(
        self, connection: Connection, until: float, instead_of: str | None = None
    ) -> str:
        """What proves who we are, or nothing where nobody asks; not *instead_of*, which has gone.

        Raises :exc:`NotConnected` when the member does not answer: it has not seen the request.
        """
        token = self._token
        if token is None or token == instead_of:
            who = rpc.AuthenticateRequest(name=self._address.user, password=self._address.password)
            try:
                answer = connection.call("Authenticate", who, until - time.monotonic(), None)
                token = str(answer.token)
            except grpc.RpcError as exc:
                if _another_may_know(exc):
                    self._leave(connection)
                    raise NotConnected(_details(exc)) from exc
                if not _asks_nobody(exc):
                    raise
                token = ""
            self._token = token
        return token


class Connection:
    """One channel, and etcd's calls by their names."""

    def __init__(self, address: Address, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = _channel(address, endpoint)
        self._status = rpc.MaintenanceStub(self._channel).Status
        key_value, lease = rpc.KVStub(self._channel), rpc.LeaseStub(self._channel)
        self._calls: Mapping[str, Callable[..., Any]] = {
            "Range": key_value.Range,
            "Txn": key_value.Txn,
            "LeaseGrant": lease.LeaseGrant,
            "LeaseRevoke": lease.LeaseRevoke,
            "LeaseKeepAlive": _single(lease.LeaseKeepAlive),
            "Authenticate": rpc.AuthStub(self._channel).Authenticate,
            "Status": self._status,
            "Alarm": rpc.MaintenanceStub(self._channel).Alarm,
            "MemberList": rpc.ClusterStub(self._channel).MemberList,
        }

    def open(self, seconds: float) -> None:
        """Return when the member answers; raise :exc:`NotConnected` as soon as that has failed."""
        try:
            self._status(rpc.StatusRequest(), timeout=seconds)
        except grpc.RpcError as exc:
            if _another_may_know(exc):
                self.close()
                raise NotConnected(_details(exc)) from exc

    def call(self, name: str, request: Any, seconds: float, token: str | None) -> Any:
        """The answer to *request*. Raises :exc:`grpc.RpcError`."""
        metadata = (*_METADATA, ("token", token)) if token else _METADATA
        return self._calls[name](request, timeout=seconds, metadata=metadata)

    def close(self) -> None:
        self._channel.close()


def _single(stream: Callable[..., Any]) -> Callable[..., Any]:
    """One question and one answer of a call that could have many."""

    def call(request: Any, **how: Any) -> Any:
        answers = stream(iter([request]), **how)
        try:
            for answer in answers:
                return answer
            raise NotConnected("the stream ended without an answer")
        finally:
            answers.cancel()

    return call


def _channel(address: Address, endpoint: str) -> Any:
    options = list({**_OPTIONS, **dict(address.grpc_options)}.items())
    if address.tls is None:
        return grpc.insecure_channel(endpoint, options)
    tls = address.tls
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
    return grpc.secure_channel(endpoint, credentials, options)


def _was_refused(error: grpc.RpcError) -> bool:
    """Whether nothing happened: gRPC had no connection to send it on, which it says in words only,
    or the member knew no leader.
    """
    unsent = _says(error, "failed to connect to all addresses")
    return _has_no_leader(error) or (_is(error, "UNAVAILABLE") and unsent)


def _has_no_leader(error: grpc.RpcError) -> bool:
    """Whether the member refused the call because it does not know a leader."""
    return _is(error, "UNAVAILABLE") and _says(error, "etcdserver: no leader")


def _asks_nobody(error: grpc.RpcError) -> bool:
    """Whether the member takes everybody for who they are: that was a question for a token."""
    return _says(error, "etcdserver: authentication is not enabled")


def _wants_token(error: grpc.RpcError) -> bool:
    """Whether the call was refused for a token that is missing, or known no longer."""
    return (
        _says(error, "etcdserver: invalid auth token")
        or _says(error, "etcdserver: user name is empty")
        or _says(error, "etcdserver: revision of auth store is old")
    )


def _has_no_lease(error: grpc.RpcError) -> bool:
    """Whether nothing happened because a lease in the request has expired."""
    return _is(error, "NOT_FOUND") and _says(error, "etcdserver: requested lease not found")


def _has_no_row(error: grpc.RpcError) -> bool:
    """Whether nothing happened because a row that was to be changed is gone."""
    return _says(error, "etcdserver: key not found")


def _another_may_know(error: grpc.RpcError) -> bool:
    """Whether it is about this member or the way to it, and not an answer to the request."""
    return any(_is(error, code) for code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"))


def _details(error: grpc.RpcError) -> str:
    call: Any = error  # what is raised is a grpc.Call as well
    return f"{call.details()} ({call.code().name})"


def _is(error: grpc.RpcError, code: str) -> bool:
    call: Any = error
    return bool(call.code() is getattr(grpc.StatusCode, code))


def _says(error: grpc.RpcError, words: str) -> bool:
    call: Any = error
    return words in (call.details() or "")


def adapt_to_greenlets() -> None:
    """Let gRPC's calls give way to other greenlets, where the process was patched for gevent.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` under eventlet, which gRPC does not know:
    its calls would stop every green thread.
    """
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("socket"):
        raise ConfigurationError(
            "gRPC, which etcd speaks, does not work under eventlet: use gevent"
        )
    patched: Any = sys.modules.get("gevent.monkey")
    if patched is not None and patched.is_module_patched("socket"):
        from grpc.experimental.gevent import init_gevent

        init_gevent()
