"""Calls to whichever member of an etcd answers, with a token that is fetched anew when it has gone.

etcd3 knows one member, and one token for ever. Here a member that fails is left for the next one.
A request that *repeats* is sent to that one at once; any other only if it was surely not taken,
and else its fate is unknown. The time for an answer is that of all attempts together.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import grpc

from celery_dlock.backends import etcd_connection as net
from celery_dlock.backends.etcd_address import Address
from celery_dlock.backends.etcd_connection import Connection, NotConnected, rpc
from celery_dlock.errors import BackendUnavailable

#: Seconds until members that have lost their leader are asked again.
ELECTION_PAUSE = 0.1


class LeaseGone(Exception):
    """Nothing happened: a lease in the request has ended."""


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
            if net.has_no_lease(exc):
                raise LeaseGone from exc
            if net.has_no_row(exc):
                raise RowGone from exc
            raise BackendUnavailable(f"{self._address.place}: {net.details(exc)}") from exc
        except ValueError as exc:  # gRPC's word for a channel that another thread has closed
            raise BackendUnavailable(f"{self._address.place}: {exc}") from exc

    def close(self) -> None:
        """Give the connection back; the next call opens one again."""
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
                    if not (net.was_refused(exc) or (repeats and net.another_may_know(exc))):
                        raise
                    electing = electing or net.has_no_leader(exc)
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
                if token is None or not net.wants_token(exc):
                    raise
            token = self._token_for(connection, until, instead_of=token)
            return connection.call(name, request, until - time.monotonic(), token)
        except grpc.RpcError as exc:
            if net.another_may_know(exc):
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
                connection.open(min(until - time.monotonic(), net.CONNECT_TIMEOUT))
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
                if net.another_may_know(exc):
                    self._leave(connection)
                    raise NotConnected(net.details(exc)) from exc
                if not net.asks_nobody(exc):
                    raise
                token = ""
            self._token = token
        return token
