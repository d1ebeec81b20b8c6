"""Any text may be a key or a part; in etcd rows sort as their texts do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.stores.consensus.rows import ORDERED, PARTS, Kind, Name
from celery_dlock.stores.etcd.names import Names, part_of

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
def test_a_name_lies_in_the_range_of_its_kind_and_part_and_in_no_other(
    kind: Kind, key: str, part: str
) -> None:
    written = NAMES.written(Name(kind, key, part))
    for each in Kind:
        first, end = NAMES.range(each)
        assert (first <= written < end) is (each is kind)
    if kind not in ORDERED:
        inside = [number for number in range(PARTS) if _lies_in(written, kind, number)]
        assert inside == [part_of(key)]


@given(st.sampled_from(sorted(set(Kind) - ORDERED)), TEXT, TEXT, TEXT)
def test_a_name_lies_in_the_range_of_its_key_and_in_no_other(
    kind: Kind, key: str, part: str, other: str
) -> None:
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
