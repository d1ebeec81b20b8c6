"""The ways between the members of an etcd, through ports of our own: they can be cut.

All members are told the same address of a member, so a way is known by who has called: by the
process that has the other end of the connection.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

import psutil

from tests.services.etcd import EtcdServer
from tests.services.ports import free_ports


class Line:
    """One connection, from *caller* to *called*, which listens at *port*."""

    def __init__(
        self, caller: EtcdServer | None, called: EtcdServer, port: int, here: socket.socket
    ) -> None:
        self.ends = (caller, called)
        self.swallows = False
        self._here = here
        self._there = socket.create_connection(("127.0.0.1", port))

    def serve(self) -> None:
        back = threading.Thread(target=self._carry, args=(self._there, self._here), daemon=True)
        back.start()
        self._carry(self._here, self._there)
        back.join()
        self._here.close()
        self._there.close()

    def hang_up(self) -> None:
        for end in (self._here, self._there):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self.swallows:
                    target.sendall(data)
        self.hang_up()


class Peers:
    """All ways between *members*, which must not run yet."""

    def __init__(self, members: Sequence[EtcdServer]) -> None:
        self._members = members
        self._mutex = threading.Lock()
        self._cut: dict[EtcdServer, bool] = {}
        self._lines: list[Line] = []
        self._listeners: dict[EtcdServer, socket.socket] = {}
        for member in members:
            self.lead_to(member)

    def lead_to(self, member: EtcdServer) -> None:
        """From now on *member* has a new address for the others; the old one leads nowhere."""
        if member in self._listeners:
            _close(self._listeners[member])
        (port,) = free_ports(1)
        self._listeners[member] = listener = socket.create_server(("127.0.0.1", port))
        member.peer_url = f"http://127.0.0.1:{port}"
        serve = (listener, member, member.peer_port)  # who calls the old one never gets here
        threading.Thread(target=self._serve, args=serve, daemon=True).start()

    def cut_off(self, member: EtcdServer, *, silent: bool = False) -> None:
        """End every line of *member*, or have them swallow what is said; new ones alike."""
        with self._mutex:
            self._cut[member] = silent
            for line in self._of(member):
                line.swallows = True
                if not silent:
                    line.hang_up()

    def heal(self, member: EtcdServer) -> None:
        with self._mutex:
            if self._cut.pop(member, None) is not None:
                for line in self._of(member):
                    line.hang_up()  # of what was swallowed, the rest is of no use

    def close(self) -> None:
        for listener in self._listeners.values():
            _close(listener)
        with self._mutex:
            for line in self._lines:
                line.hang_up()

    def _of(self, member: EtcdServer) -> list[Line]:
        return [line for line in self._lines if member in line.ends]

    def _serve(self, listener: socket.socket, called: EtcdServer, port: int) -> None:
        while True:
            try:
                here, (_, calling) = listener.accept()
            except OSError:
                return
            converse = (here, calling, called, port)
            threading.Thread(target=self._converse, args=converse, daemon=True).start()

    def _converse(self, here: socket.socket, calling: int, called: EtcdServer, port: int) -> None:
        with here, suppress(OSError):
            if self._cut.get(called) is False:
                return  # it is called again and again, and to find out by whom takes long
            caller = self._caller(calling)
            with self._mutex:
                cut = [self._cut[end] for end in (caller, called) if end in self._cut]
                if False in cut:
                    return
                line = Line(caller, called, port, here)
                line.swallows = bool(cut)
                self._lines.append(line)
            try:
                line.serve()
            finally:
                with self._mutex:
                    self._lines.remove(line)

    def _caller(self, port: int) -> EtcdServer | None:
        for member in self._members:
            with suppress(psutil.Error, AssertionError):
                for each in psutil.Process(member.pid).net_connections("tcp"):
                    if each.laddr and each.laddr.port == port and each.raddr:
                        return member
        return None


def _close(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
