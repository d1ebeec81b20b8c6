"""The names of a lock key's parts in Redis: one hash slot for each key, and no two keys alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_dlock.backends.redis_wire import base_name, names

braced = st.text(alphabet="{}:a", max_size=5)


def test_a_name_can_be_read() -> None:
    assert names(base_name("dlock", "order:42"), "id:0:0") == [
        "dlock:1:{order:42}:state",
        "dlock:1:{order:42}:queue",
        "dlock:1:{order:42}:entries",
        "dlock:1:{order:42}:lost",
        "dlock:1:{order:42}:token",
        "dlock:1:{order:42}:done:id:0:0",
    ]


@given(prefix=braced, key=braced, task=braced)
def test_all_parts_of_a_key_lie_in_one_slot(prefix: str, key: str, task: str) -> None:
    parts = names(base_name(prefix, key), task)
    assert len({key_slot(part.encode()) for part in parts}) == 1


@pytest.mark.parametrize("around", ["{%s}", "}{%s", "{}%s", "}%s{", "{{%s"])
def test_keys_with_braces_spread_over_the_slots_like_others(around: str) -> None:
    slots = {key_slot(base_name("dlock", around % number).encode()) for number in range(50)}
    assert len(slots) > 40


@given(one=braced, other=braced)
def test_two_keys_have_two_names(one: str, other: str) -> None:
    assert (base_name("dlock", one) == base_name("dlock", other)) is (one == other)
