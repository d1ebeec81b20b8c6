"""Three real members of one ZooKeeper; each can be killed, paused, wiped, or cut off the others.

Each member knows the others by ports of our own that lead to theirs. In its greeting a member says
where it listens itself, and whoever must call back does so there; so greetings are rewritten, to
name our port for that way. A member that is cut off still serves its clients, as far as it can.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.services.ports import free_ports
from tests.services.require import require
from tests.services.started import Started
from tests.services.until import until
from tests.services.zookeeper import ZooKeeperServer

SIZE = 3

#: Milliseconds. An election that has met a dead member asks again after ever longer pauses, a
#: minute in the end, which is no concern of ours.
HASTE = {"zookeeper.fastleader.maxNotificationInterval": "500", "zookeeper.cnxTimeout": "1000"}


class Way:
    """From one member to a port of another: open, closed, or swallowing all without a word."""

    def __init__(self, target: int) -> None:
        self.rewrite = (b"", b"")
        self._open, self._silent = True, False
        self._target = target
        self._lines: list[socket.socket] = []
        (self.port,) = free_ports(1)
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def shut(self, *, silent: bool) -> None:
        self._open, self._silent = False, silent
        if not silent:
            self._hang_up()

    def heal(self) -> None:
        if not self._open:
            self._hang_up()  # of what was swallowed, the rest is of no use
        self._open, self._silent = True, False

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.shut(silent=False)

    def _hang_up(self) -> None:
        lines, self._lines = self._lines, []
        for line in lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(here,), daemon=True).start()

    def _converse(self, here: socket.socket) -> None:
        with here, suppress(OSError):
            if not self._open and not self._silent:
                return
            with socket.create_connection(("127.0.0.1", self._target)) as there:
                self._lines += [here, there]
                back = threading.Thread(target=self._carry, args=(there, here), daemon=True)
                back.start()
                self._carry(here, there, self.rewrite)
                back.join()

    def _carry(
        self,
        source: socket.socket,
        target: socket.socket,
        rewrite: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._silent:
                    target.sendall(data.replace(*rewrite) if rewrite[0] else data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class ZooKeeperEnsemble(Started):
    """Members elect a leader among themselves; two of the three have to agree."""

    def __init__(self) -> None:
        self.members = tuple(ZooKeeperServer(initLimit=4, syncLimit=4) for _ in range(SIZE))
        quorum, election = free_ports(SIZE), free_ports(SIZE)
        pairs = [(one, other) for one in range(SIZE) for other in range(SIZE) if one != other]
        self._data = {(one, other): Way(quorum[other]) for one, other in pairs}
        self._votes = {(one, other): Way(election[other]) for one, other in pairs}
        for one, other in pairs:
            greeting = election[one], self._votes[other, one].port
            old, new = (f"127.0.0.1:{port}".encode() for port in greeting)
            self._votes[one, other].rewrite = old, new
        for one, member in enumerate(self.members):
            member.number = one + 1
            member.properties = HASTE
            member.options |= {
                f"server.{other + 1}": "127.0.0.1:{}:{}".format(
                    *(quorum[one], election[one])
                    if one == other
                    else (self._data[one, other].port, self._votes[one, other].port)
                )
                for other in range(SIZE)
            }

    @property
    def url(self) -> str:
        return "zookeeper://" + ",".join(member.address for member in self.members)

    def leader(self) -> ZooKeeperServer:
        """Who leads, once somebody does that a majority follows."""
        leader = until("somebody leads", self._leading)
        assert leader is not None
        return leader

    def followers(self) -> list[ZooKeeperServer]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def _leading(self) -> ZooKeeperServer | None:
        modes = {member: member.mode for member in self.members if member.running}
        leaders = [member for member, mode in modes.items() if mode == "leader"]
        whole = len(leaders) == 1 and "follower" in modes.values()
        return leaders[0] if whole else None

    def cut_off(self, member: ZooKeeperServer, *, silent: bool = False) -> None:
        """Nobody of the others hears of it, nor it of them; clients reach it as before.

        The ends of its connections are told, unless it happens *silent*.
        """
        for way in self._ways(member):
            way.shut(silent=silent)

    def heal(self, member: ZooKeeperServer) -> None:
        for way in self._ways(member):
            way.heal()

    def _ways(self, member: ZooKeeperServer) -> list[Way]:
        number = self.members.index(member)
        ways = [*self._data.items(), *self._votes.items()]
        return [way for ends, way in ways if number in ends]

    def start(self) -> None:
        for member in self.members:
            member.begin()
        for member in self.members:
            member.wait()

    def stop(self) -> None:
        for member in self.members:
            member.stop()
        for way in (*self._data.values(), *self._votes.values()):
            way.close()


@pytest.fixture
def own_zookeeper_ensemble() -> Iterator[ZooKeeperEnsemble]:
    require("zookeeper")
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble
