"""The fence for data in Redis, on a real server: who comes too late, and what is done already."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_dlock.core.lease import Lease
from celery_dlock.errors import ConfigurationError, StaleFencingToken
from celery_dlock.fencing import redis as fence
from celery_dlock.locks.current import holding
from tests.contract.redis_store import requests_sent
from tests.fencing.redis_orders import Connect, lease, ours, paid, paying, paying_blindly, term

pytestmark = pytest.mark.server("redis")


class TestTheFence:
    def test_a_late_holder_is_refused_and_writes_nothing(self, client: Any, order: str) -> None:
        assert fence.transaction(client, paying(order), lease(order, 34))

        with pytest.raises(StaleFencingToken) as late:
            fence.transaction(client, paying(order, 100), lease(order, 33))

        assert (late.value.resource, late.value.mine, late.value.seen) == (order, 33, 34)
        assert paid(client, order) == 1

    def test_one_holder_writes_often_and_no_other_does(self, client: Any, order: str) -> None:
        for _ in range(2):
            assert fence.transaction(client, paying(order), lease(order, 7, "mine"))
        with pytest.raises(StaleFencingToken):
            fence.transaction(client, paying(order), lease(order, 7, "theirs"))
        assert fence.transaction(client, paying(order), lease(order, 8, "theirs"))
        assert paid(client, order) == 3

    def test_the_lease_of_the_running_code_is_what_is_shown(self, client: Any, order: str) -> None:
        with holding(lease(order, 5)):
            assert fence.transaction(client, paying(order))
        given: dict[str, Any] = {"resource": order, "owner": "somebody"}

        with pytest.raises(StaleFencingToken):
            fence.transaction(client, paying(order), fencing_token=4, **given)
        assert fence.transaction(client, paying(order), fencing_token=2**63 - 1, **given)
        with pytest.raises(StaleFencingToken):
            fence.transaction(client, paying(order), fencing_token=2**63 - 2, **given)
        assert paid(client, order) == 2

    def test_of_several_keys_one_that_is_late_is_enough(self, client: Any, order: str) -> None:
        other = f"{order}b"
        both = Lease((term(order, 5), term(other, 5)), "strict")
        fence.transaction(client, paying(other), lease(other, 6))

        with pytest.raises(StaleFencingToken, match=other):
            fence.transaction(client, paying(order), both)

        assert ours(client, order) == [f"dlock_fence:{{{other}}}"]
        both = Lease((term(order, 7), term(other, 7)), "strict")
        assert fence.transaction(client, paying(order), both)
        for key in (order, other):
            with pytest.raises(StaleFencingToken):
                fence.transaction(client, paying(key), lease(key, 6))

    def test_each_slot_has_a_fence_and_all_one_mark(self, client: Any, order: str) -> None:
        assert fence.transaction(client, paying(order), lease(order, 9, slot=0), once="a")
        assert fence.transaction(client, paying(order), lease(order, 8, slot=1), once="b")
        with pytest.raises(StaleFencingToken, match="#1"):
            fence.transaction(client, paying(order), lease(order, 7, slot=1))
        assert not fence.transaction(client, paying(order), lease(order, 8, slot=1), once="a")
        assert ours(client, order) == [
            f"dlock_fence:{{{order}}}",
            f"dlock_fence:{{{order}}}#1",
            f"dlock_once:{{{order}}}:a",
            f"dlock_once:{{{order}}}:b",
        ]


class TestOnce:
    def test_an_effect_of_several_keys_is_the_named_ones(self, client: Any, order: str) -> None:
        both = Lease((term(order, 7), term(f"{order}-b", 7)), "strict")
        with pytest.raises(ConfigurationError, match="several keys"):
            fence.transaction(client, paying(order), both, once="event")

        assert fence.transaction(client, paying(order), both, once=(order, "event"))
        assert not fence.transaction(client, paying(order), lease(order, 8), once="event")

    def test_a_redelivery_finds_the_effect_done(self, client: Any, order: str) -> None:
        answers = [
            fence.transaction(client, paying(order), lease(order, token, str(token)), once=effect)
            for token, effect in [(1, "event 7"), (2, "event 7"), (2, "event 8"), (3, "event 7")]
        ]

        assert answers == [True, False, True, False]
        assert paid(client, order) == 2

    def test_a_late_holder_is_told_after_the_effect(self, client: Any, order: str) -> None:
        fence.transaction(client, paying(order), lease(order, 2), once="event")

        with pytest.raises(StaleFencingToken):
            fence.transaction(client, paying(order), lease(order, 1), once="event")

    @pytest.mark.parametrize("slot", [0, 1])
    def test_of_two_at_once_one_does_it(self, connect: Connect, order: str, slot: int) -> None:
        mine, theirs = connect(), connect()
        came: list[bool] = []

        def pay(pipe: Any) -> None:
            held = lease(order, 1, slot=slot)
            came.append(fence.transaction(theirs, paying_blindly(order), held, once="event"))
            paying_blindly(order)(pipe)

        assert not fence.transaction(mine, pay, lease(order, 1), once="event")
        assert came == [True]
        assert paid(mine, order) == 1


def test_what_is_written_down_is_forgotten_after_a_week(client: Any, order: str) -> None:
    fence.transaction(client, paying(order), lease(order), once="event")
    fence.mint(client, f"minted:{order}", lease(order))

    names = ours(client, order)

    assert len(names) == 3
    assert all(0 <= fence.KEPT - client.ttl(name) < 3600 for name in names)


def test_a_queued_command_that_fails_undoes_nothing(client: Any, order: str) -> None:
    """Redis knows no rollback; the page says so."""

    def pay(pipe: Any) -> None:
        paying(order)(pipe)
        pipe.lpush(f"{{{order}}}:paid", "not a list")

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fence.transaction(client, pay, lease(order), once="event")

    assert paid(client, order) == 1
    assert not fence.transaction(client, pay, lease(order), once="event")


def test_it_takes_three_round_trips_and_minting_one(connect: Connect, order: str) -> None:
    client = connect()
    client.ping()

    both = Lease((term(order, 5), term(f"{order}b", 5)), "strict")
    with requests_sent() as sent:
        assert fence.transaction(client, paying_blindly(order), both, once=(order, "event"))
    assert sent.total() == 3
    with requests_sent() as sent:
        fence.mint(client, f"minted:{order}", both)
    assert sent.total() == 1
