"""Tokens that the Redis of the data issues, and what its fence refuses to do."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio

from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError, LockLost, StaleFencingToken
from celery_dlock.fencing import redis as fence
from celery_dlock.locks.current import holding
from tests.fencing.redis_orders import lease, ours, paying

pytestmark = pytest.mark.server("redis")


class TestMint:
    def test_each_count_is_larger_and_is_a_fence(self, client: Any, order: str) -> None:
        held, name = lease(order), f"minted:{order}"
        first, second = (fence.mint(client, name, held) for _ in range(2))
        client.delete(f"dlock_minted:{{{name}}}")  # forgotten: it has expired
        third = fence.mint(client, name, held)
        assert first < second < third < 2**53

        shown: dict[str, Any] = {"resource": name, "owner": held.owner}
        assert fence.transaction(client, paying(order), fencing_token=third, **shown)
        with pytest.raises(StaleFencingToken):
            fence.transaction(client, paying(order), fencing_token=second, **shown)

    def test_who_loses_the_lock_as_it_counts_is_given_none(
        self, client: Any, order: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held, count = lease(order), client.eval

        def lose_and_count(*args: Any) -> Any:
            held.give_back()
            return count(*args)

        monkeypatch.setattr(client, "eval", lose_and_count)
        with holding(held), pytest.raises(LockLost):
            fence.mint(client, f"minted:{order}")

    def test_the_name_is_not_that_of_a_key_with_tokens_of_its_own(
        self, client: Any, order: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=f"'minted:{order}'"):
            fence.mint(client, order, lease(order))


class TestWrongUse:
    def test_a_write_that_forgets_multi_fails(self, client: Any, order: str) -> None:
        with pytest.raises(ConfigurationError, match=r"pipe\.multi\(\)"):
            fence.transaction(client, lambda pipe: pipe.get(order), lease(order))

    @pytest.mark.parametrize("last", ["execute", "unwatch"])
    def test_a_write_that_executes_by_itself_is_refused(
        self, client: Any, order: str, last: str
    ) -> None:
        def pay(pipe: Any) -> None:
            if last == "execute":
                paying(order)(pipe)
            getattr(pipe, last)()

        with pytest.raises(ConfigurationError, match="executed or unwatched"):
            fence.transaction(client, pay, lease(order))

    def test_what_is_no_client_of_one_server_is_refused(self, client: Any, order: str) -> None:
        with client.pipeline() as pipe:
            for other in (pipe, redis.asyncio.Redis(), object()):
                with pytest.raises(ConfigurationError, match=r"pass the redis\.Redis"):
                    fence.transaction(other, paying(order), lease(order))
                with pytest.raises(ConfigurationError, match=r"pass the redis\.Redis"):
                    fence.mint(other, f"minted:{order}", lease(order))

    def test_what_cannot_be_fenced_is_refused(self, client: Any, order: str) -> None:
        reader = lease(order, 0, mode=Mode.SHARED)
        with pytest.raises(ConfigurationError, match="read lock"):
            fence.transaction(client, paying(order), reader)
        with pytest.raises(ConfigurationError, match="braces"):
            fence.transaction(client, paying(order), resource="{a}", fencing_token=1, owner="o")
        with pytest.raises(ConfigurationError, match="once"):
            fence.transaction(client, paying(order), lease(order), once="")
        with pytest.raises(ConfigurationError, match="all of resource"):
            fence.transaction(client, paying(order), resource=order)
        assert ours(client, order) == []
