"""A gRPC channel to one member of an etcd, and what a failed call on it says.

A call that fails may have happened all the same. It has not if it found no connection to go out
on, or if the member refused it: those are told apart here, because they may be sent again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from celery_dlock.backends.etcd_address import Address
from celery_dlock.backends.etcd_protobuf import import_etcdrpc
from celery_dlock.errors import ConfigurationError

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


class NotConnected(ConnectionError):
    """The request reached nobody."""


class Connection:
    """One channel, and etcd's calls by their names."""

    def __init__(self, address: Address, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = _channel(address, endpoint)
        self._status = rpc.MaintenanceStub(self._channel).Status
        key_value, lease = rpc.KVStub(self._channel), rpc.LeaseStub(self._channel)
        self._calls: Mapping[str, Callable[..., Any]] = {
            "Range": key_value.Range,
            "Txn": self._channel.unary_unary(  # whose requests are written already
                "/etcdserverpb.KV/Txn", response_deserializer=rpc.TxnResponse.FromString
            ),
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
            if another_may_know(exc):
                self.close()
                raise NotConnected(details(exc)) from exc

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


def was_refused(error: grpc.RpcError) -> bool:
    """Whether nothing happened: gRPC had no connection to send it on, which it says in words only,
    or the member knew no leader.
    """
    unsent = _says(error, "failed to connect to all addresses")
    return has_no_leader(error) or (_is(error, "UNAVAILABLE") and unsent)


def has_no_leader(error: grpc.RpcError) -> bool:
    """Whether the member refused the call because it does not know a leader."""
    return _is(error, "UNAVAILABLE") and _says(error, "etcdserver: no leader")


def asks_nobody(error: grpc.RpcError) -> bool:
    """Whether the member takes everybody for who they are: that was a question for a token."""
    return _says(error, "etcdserver: authentication is not enabled")


def wants_token(error: grpc.RpcError) -> bool:
    """Whether the call was refused for a token that is missing, or known no longer."""
    return (
        _says(error, "etcdserver: invalid auth token")
        or _says(error, "etcdserver: user name is empty")
        or _says(error, "etcdserver: revision of auth store is old")
    )


def has_no_lease(error: grpc.RpcError) -> bool:
    """Whether nothing happened because a lease in the request has ended."""
    return _is(error, "NOT_FOUND") and _says(error, "etcdserver: requested lease not found")


def has_no_row(error: grpc.RpcError) -> bool:
    """Whether nothing happened because a row that was to be changed is gone."""
    return _says(error, "etcdserver: key not found")


def another_may_know(error: grpc.RpcError) -> bool:
    """Whether it is about this member or the way to it, and not an answer to the request."""
    return any(_is(error, code) for code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"))


def details(error: grpc.RpcError) -> str:
    told: Any = error  # what is raised is a grpc.Call as well
    return f"{told.details()} ({told.code().name})"


def _is(error: grpc.RpcError, code: str) -> bool:
    told: Any = error
    return bool(told.code() is getattr(grpc.StatusCode, code))


def _says(error: grpc.RpcError, words: str) -> bool:
    told: Any = error
    return words in (told.details() or "")


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
