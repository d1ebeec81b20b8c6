"""Any text may be a key or a part of a name; in etcd rows sort as their texts do.

In Redis all parts of a key lie in one hash slot, and no two keys are alike.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_dlock.stores.consensus.rows import ORDERED, PARTS, Kind, Name
from celery_dlock.stores.etcd.names import Names, part_of
from celery_dlock.stores.redis.wire import (
    SHARDS,
    base_name,
    indexes,
    items_of,
    names,
    swept,
    touched,
)

TEXT = st.text(st.characters(exclude_categories=())) | st.text(
    st.sampled_from(" !/\0\x01a2,\ud800")
)
NAMES = Names("dlock")


@given(st.sampled_from(Kind), TEXT, TEXT)
def test_a_name_is_read_as_it_was_written(kind: Kind, key: str, part: str) -> None:
    name = Name(kind, key, part)
    assert NAMES.read(kind, NAMES.written(name)) == name


@given(TEXT, TEXT, TEXT, TEXT)
def test_what_is_due_sorts_by_its_part_and_then_by_its_key(
    part: str, key: str, other_part: str, other_key: str
) -> None:
    one, other = Name(Kind.DUE, key, part), Name(Kind.DUE, other_key, other_part)
    earlier = (part, key) < (other_part, other_key)
    assert (NAMES.written(one) < NAMES.written(other)) is earlier


@given(st.sampled_from(Kind), TEXT, TEXT)
def test_a_name_lies_in_the_range_of_its_kind_alone(kind: Kind, key: str, part: str) -> None:
    written = NAMES.written(Name(kind, key, part))
    for each in Kind:
        first, end = NAMES.range(each)
        assert (first <= written < end) is (each is kind)
    if kind not in ORDERED:
        inside = [number for number in range(PARTS) if _lies_in(written, kind, number)]
        assert inside == [part_of(key)]


@given(st.sampled_from(sorted(set(Kind) - ORDERED)), TEXT, TEXT, TEXT)
def test_a_name_lies_in_its_keys_range_alone(kind: Kind, key: str, part: str, other: str) -> None:
    written = NAMES.written(Name(kind, key, part))
    for each in (key, other):
        first, end = NAMES.range_of(kind, each)
        assert (first <= written < end) is (each == key)


@given(TEXT, TEXT)
def test_prefixes_do_not_meet(prefix: str, key: str) -> None:
    written = Names(prefix).written(Name(Kind.HOLDER, key, ""))
    first, end = NAMES.range(Kind.HOLDER)
    assert (first <= written < end) is (prefix == "dlock")


def _lies_in(written: bytes, kind: Kind, part: int) -> bool:
    first, end = NAMES.range(kind, part)
    return first <= written < end


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
def test_no_part_of_a_key_is_anothers(one: tuple[str, str], other: tuple[str, str]) -> None:
    mine, theirs = (set(names(base_name("dlock", key), task)) for key, task in (one, other))
    assert bool(mine & theirs) is (one[0] == other[0])


@given(one=braced, other=braced)
def test_two_keys_have_two_names(one: str, other: str) -> None:
    assert (base_name("dlock", one) == base_name("dlock", other)) is (one == other)
