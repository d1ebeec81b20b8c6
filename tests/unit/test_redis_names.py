"""The names of a lock key's parts in Redis: one hash slot a shard, and no two keys alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_dlock.stores.redis.wire import (
    SHARDS,
    base_name,
    indexes,
    items_of,
    names,
    swept,
    touched,
)

braced = st.text(alphabet="{}:a)", max_size=5)


def test_a_name_can_be_read() -> None:
    assert touched("dlock", "order:42", "id:0:0") == [
        "dlock:1:{43}:{order:42}:state",
        "dlock:1:{43}:{order:42}:queue",
        "dlock:1:{43}:{order:42}:entries",
        "dlock:1:{43}:{order:42}:lost",
        "dlock:1:{43}:{order:42}:token",
        "dlock:1:{43}:{order:42}:done:id:0:0",
        "dlock:1:{43}:due",
        "dlock:1:{43}:dead",
        "dlock:1:{43}:died",
        "dlock:1:{43}:tasks",
    ]


@given(prefix=braced, key=braced, task=braced)
def test_all_parts_of_a_key_lie_in_the_slot_of_its_index(prefix: str, key: str, task: str) -> None:
    parts = touched(prefix, key, task)
    assert len({key_slot(part.encode()) for part in parts}) == 1
    assert parts[6] in indexes(prefix)


@pytest.mark.parametrize("around", ["%s", "{%s}", "}{%s", "{}%s", "}%s{", "{{%s"])
def test_keys_spread_over_all_shards(around: str) -> None:
    slots = {key_slot(base_name("dlock", around % number).encode()) for number in range(1000)}
    assert len(slots) == SHARDS


@given(prefix=braced, key=braced)
def test_a_key_is_known_again_from_the_index(prefix: str, key: str) -> None:
    state, index = names(base_name(prefix, key))[0], touched(prefix, key)[6]
    member = state.removeprefix(index.removesuffix("due")).removesuffix(":state")

    (wake,) = swept([[[member.encode(), [[b"task", b"message", None, 1]]]], None]).wakes

    assert wake.key == key


@given(
    key=braced,
    found=st.lists(st.tuples(st.booleans(), st.sampled_from(["", ":0:0", ":}:p3", ":{a}:0"]))),
)
def test_the_items_of_a_task_are_told_apart(key: str, found: list[tuple[bool, str]]) -> None:
    member = base_name("dlock", key).partition("}:")[2].encode()
    packed = b"".join(
        b"%c%d%b%b" % (b"pd"[is_dead], len(rest), rest.encode(), member) for is_dead, rest in found
    )

    items = list(items_of(b"id", packed + b"p9:0"))

    assert items == [(is_dead, member, b"id" + rest.encode()) for is_dead, rest in found]


@given(one=st.tuples(braced, braced), other=st.tuples(braced, braced))
def test_no_part_of_a_key_is_a_part_of_another(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    mine, theirs = (set(names(base_name("dlock", key), task)) for key, task in (one, other))
    assert bool(mine & theirs) is (one[0] == other[0])


@given(one=braced, other=braced)
def test_two_keys_have_two_names(one: str, other: str) -> None:
    assert (base_name("dlock", one) == base_name("dlock", other)) is (one == other)
