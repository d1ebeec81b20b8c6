"""The fence for data in a Redis Cluster: in the slot of the key, wherever that has moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis.cluster import RedisCluster as Client
from redis.exceptions import ClusterCrossSlotError, MovedError, TryAgainError

from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Claim
from celery_dlock.errors import StaleFencingToken
from celery_dlock.fencing import redis as fence
from tests.services.redis_cluster import RedisCluster
from tests.services.slots import Move

pytestmark = pytest.mark.server("redis")


def connect(cluster: RedisCluster) -> Any:
    return closing(Client(host="127.0.0.1", port=cluster.servers[0].port))


@pytest.fixture
def client(redis_cluster: RedisCluster) -> Iterator[Any]:
    with connect(redis_cluster) as client:
        yield client


def lease(token: int, *keys: str, slot: int = 0) -> Lease:
    claims = (Claim(key, task="t:0:0", nonce="n", ttl=30_000_000) for key in keys)
    return Lease(tuple(Term(c, slot, token, 0.0, monotonic=lambda: 0.0) for c in claims), "strict")


def pay(client: Any, held: Lease, once: str | None = None) -> bool:
    def write(pipe: Any) -> None:
        paid = int(pipe.get(f"{{{held.key}}}:paid") or 0)
        pipe.multi()
        pipe.set(f"{{{held.key}}}:paid", paid + 1, ex=600)

    return fence.transaction(client, write, held, once=once)


def test_the_fence_lies_with_the_data(client: Any, order: str) -> None:
    assert pay(client, lease(7, order), once="event")
    assert pay(client, lease(7, order, slot=1), once="event 2")
    assert not pay(client, lease(8, order, slot=1), once="event")
    with pytest.raises(StaleFencingToken):
        pay(client, lease(6, order))
    minted = fence.mint(client, f"minted:{order}", lease(7, order))
    assert minted < fence.mint(client, f"minted:{order}", lease(7, order))
    assert client.get(f"{{{order}}}:paid") == b"2"


def test_keys_of_two_slots_cannot_be_written_together(client: Any) -> None:
    with pytest.raises(ClusterCrossSlotError):
        pay(client, lease(1, "order:1", "order:2"))


def test_a_client_is_told_who_has_the_slot(redis_cluster: RedisCluster, order: str) -> None:
    owner = redis_cluster.master_of(f"{{{order}}}")
    other = next(server for server in redis_cluster.servers[:3] if server is not owner)
    with other.client() as client, pytest.raises(MovedError):
        pay(client, lease(1, order))


def test_a_slot_that_has_moved_is_found(own_redis_cluster: RedisCluster, order: str) -> None:
    name = f"{{{order}}}:paid"
    with connect(own_redis_cluster) as client:
        assert pay(client, lease(1, order))
        move = Move(own_redis_cluster, name)
        move.begin()
        move.end()

        assert pay(client, lease(2, order))
        with pytest.raises(StaleFencingToken):
            pay(client, lease(1, order))
        assert client.get(name) == b"2"


@pytest.mark.parametrize("moved", ["fence", "data", "all"])
@pytest.mark.parametrize("once", [None, "event"])
def test_a_slot_that_is_half_moved_is_waited_for_and_nothing_in_it_taken_for_missing(
    own_redis_cluster: RedisCluster,
    order: str,
    moved: str,
    once: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fence_name, data = f"dlock_fence:{{{order}}}", f"{{{order}}}:paid"
    with connect(own_redis_cluster) as client:
        assert pay(client, lease(2, order))
        move = Move(own_redis_cluster, data)
        move.begin()
        move.bring(*{"fence": [fence_name], "data": [data], "all": [fence_name, data]}[moved])
        monkeypatch.setattr(fence, "PAUSES", (0.0,))
        with pytest.raises(TryAgainError, match="half moved"):
            pay(client, lease(3, order), once=once)
        with pytest.raises((TryAgainError, StaleFencingToken)):  # as far as that can be told
            pay(client, lease(1, order), once=once)

        monkeypatch.setattr(fence, "PAUSES", pauses_until_it_has(move))
        assert pay(client, lease(3, order), once=once)

        with pytest.raises(StaleFencingToken):
            pay(client, lease(2, order))
        assert client.get(data) == b"2"


def pauses_until_it_has(move: Move) -> Iterator[float]:
    """The slot arrives after two of them."""
    yield from (0.0, 0.0)
    move.end()
    yield 0.0


def test_a_transaction_that_finds_all_it_names_is_done_while_the_slot_begins_to_move(
    own_redis_cluster: RedisCluster, order: str
) -> None:
    with connect(own_redis_cluster) as client:
        assert pay(client, lease(1, order))
        Move(own_redis_cluster, f"{{{order}}}:paid").begin()
        assert pay(client, lease(2, order))
        with pytest.raises(StaleFencingToken):
            pay(client, lease(1, order))


@pytest.mark.parametrize("known", [True, False])
def test_tokens_are_minted_while_their_slot_moves(
    own_redis_cluster: RedisCluster, order: str, known: bool
) -> None:
    name = f"minted:{order}"
    with connect(own_redis_cluster) as client:
        minted = [fence.mint(client, name, lease(1, order)) for _ in range(known)]
        move = Move(own_redis_cluster, f"{{{name}}}")
        move.begin()
        minted += [fence.mint(client, name, lease(1, order)) for _ in range(2)]
        move.bring(*move.left())
        minted += [fence.mint(client, name, lease(1, order)) for _ in range(2)]
        move.end()
        minted.append(fence.mint(client, name, lease(1, order)))

    assert minted == sorted(set(minted))
