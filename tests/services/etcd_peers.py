"""The ways between the members of an etcd, through ports of our own: they can be cut.

All members are told the same address of a member, so a way is known by who has called: by the
process that has the other end of the connection.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from tests.services.etcd import EtcdServer
from tests.services.ports import free_ports

#: Of linux/netlink.h and linux/sock_diag.h.
_SOCK_DIAG, _BY_FAMILY = 4, 20


class Line:
    """One connection, from *caller* to *called*; *here* we were called, *there* we call."""

    def __init__(
        self,
        caller: EtcdServer | None,
        called: EtcdServer,
        here: socket.socket,
        there: socket.socket,
    ) -> None:
        self.ends = (caller, called)
        self.swallows = False
        self._here = here
        self._there = there

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
                here, _ = listener.accept()
            except OSError:
                return
            converse = (here, called, port)
            threading.Thread(target=self._converse, args=converse, daemon=True).start()

    def _converse(self, here: socket.socket, called: EtcdServer, port: int) -> None:
        with here, suppress(OSError):
            # It is called again and again while it is away: whoever it is by, it is in vain
            if self._cut.get(called) is False:
                return
            with socket.create_connection(("127.0.0.1", port)) as there:
                self._connect(here, there, self._caller(here), called)

    def _connect(
        self,
        here: socket.socket,
        there: socket.socket,
        caller: EtcdServer | None,
        called: EtcdServer,
    ) -> None:
        with self._mutex:
            cut = [self._cut[end] for end in (caller, called) if end in self._cut]
            if False in cut:
                return
            line = Line(caller, called, here, there)
            line.swallows = bool(cut)
            self._lines.append(line)
        try:
            line.serve()
        finally:
            with self._mutex:
                self._lines.remove(line)

    def _caller(self, here: socket.socket) -> EtcdServer | None:
        number = _number(here.getpeername(), here.getsockname())
        return next((member for member in self._members if _has(member, number)), None)


def _number(source: tuple[str, int], target: tuple[str, int]) -> int:
    """The inode of the socket at *source* that is connected to *target*.

    The kernel is asked for this one alone, by sock_diag(7): /proc/net/tcp, which psutil reads,
    tells of all there are on the machine and takes two hundred times as long.
    """
    (host, port), (other_host, other_port) = source, target
    ends = struct.pack("!HH", port, other_port)
    ends += struct.pack("4s12x4s12x", socket.inet_aton(host), socket.inet_aton(other_host))
    tcp = struct.pack("BBxxI", socket.AF_INET, socket.IPPROTO_TCP, 0xFFFFFFFF)
    request = tcp + ends + struct.pack("4x8s", b"\xff" * 8)  # on any device, with any cookie
    length = 16 + len(request)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(struct.pack("IHHII", length, _BY_FAMILY, 1, 0, 0) + request)
        answer = kernel.recv(4096)
    (kind,) = struct.unpack_from("H", answer, 4)
    return int.from_bytes(answer[84:88], sys.byteorder) if kind == _BY_FAMILY else 0


def _has(member: EtcdServer, number: int) -> bool:
    try:
        with os.scandir(f"/proc/{member.pid}/fd") as descriptors:
            return any(_is(descriptor, number) for descriptor in descriptors)
    except (OSError, AssertionError):  # it is gone
        return False


def _is(descriptor: os.DirEntry[str], number: int) -> bool:
    with suppress(OSError):
        found = descriptor.stat()
        return found.st_ino == number and stat.S_ISSOCK(found.st_mode)
    return False


def _close(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
