"""Three real members of one etcd, each of which can be killed, paused, wiped or restarted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.etcd import EtcdServer
from tests.services.etcd_peers import Peers
from tests.services.started import Started
from tests.services.until import until


class EtcdCluster(Started):
    """Members elect a leader among themselves; two of the three have to agree.

    Those of one that is *cuttable* speak to each other through *peers*, which takes a little time.
    """

    def __init__(self, *options: str, cuttable: bool = False) -> None:
        self.members = tuple(EtcdServer(*options, name=f"m{number}") for number in range(3))
        self.peers = Peers(self.members) if cuttable else None
        for member in self.members:
            member.joins(self.members)

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(member.address for member in self.members)

    def leader(self) -> EtcdServer:
        """Who leads, once all that run and answer agree on it."""
        leader = until("the members agree on a leader", self._agreed)
        assert leader is not None
        return leader

    def followers(self) -> list[EtcdServer]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def replace(self, member: EtcdServer) -> None:
        """Put a member that is dead out, and let one in that has its address and no data.

        Its peers find it elsewhere: what they still have to say to the old one would kill it.
        """
        other = next(other for other in self.members if other is not member and other.running)
        until("it is put out", lambda: _put_out(other, member))
        member.move()
        if self.peers is not None:
            self.peers.lead_to(member)
        # Members that have lost one take nobody new until they have heard from each other.
        until("another is let in", lambda: _let_in(other, member))
        member.wipe()
        member.joins(self.members, "existing")
        member.start()

    def _agreed(self) -> EtcdServer | None:
        said = {}
        for member in self.members:
            try:
                status = member.ask("maintenance/status")
            except OSError:
                continue
            said[status["header"]["member_id"]] = (member, status.get("leader"))
        leaders = {leader for _, leader in said.values()}
        (leader,) = leaders if len(leaders) == 1 else (None,)
        return said[leader][0] if leader in said else None

    def start(self) -> None:
        for member in self.members:
            member.begin()
        for member in self.members:
            member.wait()

    def recover(self) -> None:
        """Let every member be well again, and return when all are."""
        for member in self.members:
            if self.peers is not None:
                self.peers.heal(member)
            if member.running:
                member.resume()
            else:
                member.begin()
        for member in self.members:
            member.wait()

    def stop(self) -> None:
        for member in self.members:
            member.stop()
        if self.peers is not None:
            self.peers.close()


def _put_out(other: EtcdServer, member: EtcdServer) -> bool:
    try:
        known = other.ask("cluster/member/list")["members"]
        for each in known:
            if each.get("name") == member.name:
                other.ask("cluster/member/remove", ID=each["ID"])
                return False  # until the list says so
    except OSError:
        return False
    return True


def _let_in(other: EtcdServer, member: EtcdServer) -> bool:
    try:
        known = other.ask("cluster/member/list")["members"]
        if any(member.peer_url in each["peerURLs"] for each in known):
            return True
        other.ask("cluster/member/add", peerURLs=[member.peer_url])
    except OSError:
        pass
    return False


@pytest.fixture
def own_etcd_cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster() as cluster:
        yield cluster
