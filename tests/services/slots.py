"""A slot of a Redis Cluster on its way to another master, and stopped anywhere on it."""

from __future__ import annotations

from tests.services.redis import RedisServer
from tests.services.redis_cluster import MASTERS, RedisCluster, ident, tell


class Move:
    """The slot of the key *name*, on its way to *target*, or to any other master."""

    def __init__(self, cluster: RedisCluster, name: str, target: RedisServer | None = None) -> None:
        self.source = cluster.master_of(name)
        others = (server for server in cluster.servers[:MASTERS] if server is not self.source)
        self.target = target or next(others)
        self.slot = int(tell(self.source, "CLUSTER", "KEYSLOT", name))

    def begin(self) -> None:
        """What is there is still served where it was; what is not is referred to the other."""
        tell(self.target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", ident(self.source))
        tell(self.source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", ident(self.target))

    def left(self) -> list[bytes]:
        """The keys that have not moved."""
        found: list[bytes] = tell(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, 10_000)
        return found

    def bring(self, *names: str | bytes) -> None:
        """Move these keys, if any."""
        if names:
            tell(self.source, "MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *names)

    def end(self) -> None:
        """Move what is left; the two masters know of it."""
        self.bring(*self.left())
        for server in (self.target, self.source):
            tell(server, "CLUSTER", "SETSLOT", self.slot, "NODE", ident(self.target))
