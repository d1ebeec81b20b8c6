"""One text for one value: before and after every serializer, and never for two keys apart."""

# mypy: allow-untyped-calls

from __future__ import annotations

import re
import subprocess
import sys
import time as clock
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.utils.safestring import mark_safe
from hypothesis import given
from hypothesis import strategies as st
from kombu.serialization import dumps, loads, prepare_accept_content

from celery_dlock.core.canonical import LONGEST_KEY, canonical, escape, render, shorten
from celery_dlock.errors import ConfigurationError


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    BIG = "big"


class Level(IntEnum):
    HIGH = 3


class Price(Decimal, Enum):
    LOW = "1.10"


class Country(str, Enum):  # noqa: UP042 (the older kind)
    def __new__(cls, code: str, label: str) -> Country:
        self = str.__new__(cls, code)
        self._value_ = label
        return self

    FR = "fr", "France"


Point = namedtuple("Point", "x y")

PARIS = ZoneInfo("Europe/Paris")
ID = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 7, 1, 12, 0, 0, 5)

ANYWHERE = [
    *("", "a b:c/d,é€\U0001f600%41~{}[]()'", "\ud800"),
    *(0, -7, 2**70, True, False, None, 1.0, 0.1, -0.0, 1e16, 1e-7),
    *([], [""], [1, "a", None, [True, 2.5]], {}, {"b": 1, "a": {"c": [1]}}),
]
BYTES = [b"", b"order 1", b"\xff\x00"]
RICHER = [
    *((1, ("a",)), Point(1, 2), {1: "a", 2.5: "b"}, OrderedDict(b=1, a=2)),
    *(Size.BIG, Level.HIGH, Country.FR, [Size.BIG], {Size.BIG: Level.HIGH}),
    *(mark_safe("<b>order</b>"), Decimal("1.10"), Decimal("1E+2"), ID, date(2026, 7, 1)),
    *(NOON, NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=PARIS)),
    NOON.replace(tzinfo=timezone(timedelta(hours=-3))),
    *(time(12, 30, 1, 5), time(12, 30, tzinfo=UTC)),
]
PICKLED = [Colour.RED, Price.LOW, bytearray(b"a"), {3, 1, 2}, frozenset({"a"})]

#: Which values each serializer carries; what it does not carry never comes to a worker.
CARRIED = {
    "json": ANYWHERE + BYTES + RICHER,
    "pickle": ANYWHERE + BYTES + RICHER + PICKLED,
    "yaml": [v for v in ANYWHERE if v not in ("\ud800", 2**70)] + BYTES + [date(2026, 7, 1), NOON],
    "msgpack": [v for v in ANYWHERE if v not in ("\ud800", 2**70)]
    + BYTES
    + [(1, ("a",)), Point(1, 2), Size.BIG, Level.HIGH, Country.FR, bytearray(b"a")],
}


def through(serializer: str, value: Any) -> Any:
    """*value* as a worker gets it."""
    accept = prepare_accept_content([serializer])
    message = dumps(value, serializer=serializer)
    content_type, encoding, payload = message
    return loads(payload, content_type, encoding, accept)


@pytest.mark.parametrize("serializer", CARRIED)
def test_a_value_has_one_text_before_and_after_the_message(serializer: str) -> None:
    for value in CARRIED[serializer]:
        assert render(through(serializer, value)) == render(value), value


def test_an_instant_is_the_same_on_a_host_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    clock.tzset()
    try:
        assert render(NOON.replace(tzinfo=PARIS)) == "2026-07-01T10%3A00%3A00.000005+00%3A00"
    finally:
        monkeypatch.undo()
        clock.tzset()


@pytest.mark.parametrize("value", [NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=PARIS)], ids=repr)
def test_an_instant_survives_yaml(value: datetime) -> None:
    assert render(through("yaml", value)) == render(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_whatever_json_carries_has_one_text(value: Any) -> None:
    hook = isinstance(value, dict) and value.keys() == {"__type__", "__value__"}
    assert hook or render(through("json", value)) == render(value)


@given(JSON)
def test_a_text_is_safe_in_every_store_and_canonical_already(value: Any) -> None:
    text = render(value)

    assert re.fullmatch(r"[A-Za-z0-9._\-@+,=()\[\]'%]*", text)
    assert escape(text) == text


@given(
    st.lists(st.text(alphabet="a:,[]'()=%~2C "), max_size=3),
    st.lists(st.text(alphabet="a:,[]'()=%~2C "), max_size=3),
)
def test_different_lists_of_texts_have_different_texts(one: list[str], other: list[str]) -> None:
    assert (render(one) == render(other)) == (one == other)


@given(
    st.dictionaries(st.text("a=,()"), st.text("a=,()")),
    st.dictionaries(st.text("a=,()"), st.text("a=,()")),
)
def test_different_dicts_have_different_texts(one: dict[str, str], other: dict[str, str]) -> None:
    assert (render(one) == render(other)) == (one == other)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_no_argument_moves_the_separator(one: tuple[str, str], other: tuple[str, str]) -> None:
    texts = [":".join(map(render, pair)) for pair in (one, other)]

    assert (texts[0] == texts[1]) == (one == other)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42, "42"),
        (True, "True"),
        (None, "None"),
        ("a:b/c d", "a%3Ab%2Fc%20d"),
        ("me+you@example.org", "me+you@example.org"),
        ("é", "%C3%A9"),
        ("a~b", "a%7Eb"),
        (b"order-1", "order-1"),
        (b"\xff/~", "%FF%2F%7E"),
        (ID, "12345678-1234-5678-1234-567812345678"),
        (Decimal("1.10"), "1.10"),
        ([1, "", (2,)], "[1,'',[2]]"),
        ({"b": 1, "a": ""}, "(a=,b=1)"),
        ({3, 1, 2}, "[1,2,3]"),
        (Colour.RED, "red"),
        (Level.HIGH, "3"),
        (Price.LOW, "1.10"),
        (Country.FR, "fr"),
        (date(2026, 7, 1), "2026-07-01"),
    ],
)
def test_texts_are_readable(value: Any, text: str) -> None:
    assert render(value) == text


def test_one_instant_has_one_text_in_every_time_zone() -> None:
    assert render(datetime(2026, 7, 1, 12, tzinfo=PARIS)) == render(
        datetime(2026, 7, 1, 10, tzinfo=UTC)
    )
    assert render(datetime(2026, 7, 1, 12)) != render(datetime(2026, 7, 1, 12, tzinfo=UTC))


def test_a_value_and_the_text_that_stands_for_it_share_a_key() -> None:
    assert render(ID) == render(str(ID))
    assert render(Decimal("1.10")) == render("1.10") != render(Decimal("1.1"))
    assert render(1) == render("1") != render(1.0)


@pytest.mark.parametrize(
    "value",
    [
        *(object(), lambda: 1, type, timedelta(1), 1j, range(3), iter([])),
        *({(1, 2): 3}, {None: 1}, {Colour.RED: 1}, {True: 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_stable_text_is_refused(value: Any) -> None:
    for nested in (value, [value], {"a": value}):
        with pytest.raises(TypeError, match="text"):
            render(nested)


@pytest.mark.parametrize(
    "value",
    [*map(float, ("nan", "inf", "-inf")), *map(Decimal, ("NaN", "Infinity")), {1: 1, "1": 2}],
    ids=repr,
)
def test_a_value_that_equals_nothing_or_comes_back_as_another_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"finite|same text"):
        render(value)


def test_a_text_is_the_same_in_a_process_with_other_hash_seeds() -> None:
    code = "from celery_dlock.core.canonical import render; print(render({'a','b','c','d'}))"
    said = {
        subprocess.check_output(
            [sys.executable, "-c", code], text=True, env={"PYTHONHASHSEED": seed}
        ).strip()
        for seed in "123"
    }

    assert said == {"[a,b,c,d]"}


@given(st.text(min_size=1, max_size=300))
def test_a_key_given_by_hand_stays_as_it_is_once_it_is_canonical(key: str) -> None:
    once = canonical(key)

    assert canonical(once) == once
    assert 0 < len(once) <= LONGEST_KEY
    assert re.fullmatch(r"[!$&-;=?-Z\[\]_a-z~%]+", once)
    assert re.sub("%[0-9A-F]{2}", "", once).find("%") == -1


class TestAKeyGivenByHand:
    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("order:42", "order:42"),
            ("a/b.c-d_e@f+g=h,i~j", "a/b.c-d_e@f+g=h,i~j"),
            ("a b\tc\n", "a%20b%09c%0A"),
            ("{order}#1", "%7Border%7D%231"),
            ("100%", "100%25"),
            ("50%off", "50%25off"),
            ("a%3ab", "a%3Ab"),
            ("é\x00", "%C3%A9%00"),
            ('a"<>\\^`|', "a%22%3C%3E%5C%5E%60%7C"),
        ],
    )
    def test_loses_only_what_a_store_might_trip_over(self, key: str, text: str) -> None:
        assert canonical(key) == text

    def test_that_is_long_keeps_its_head_and_stays_apart_from_others(self) -> None:
        one, other = canonical("order:" + "x" * 500), canonical("order:" + "x" * 499 + "y")

        assert one.startswith("order:" + "x" * 144 + "~")
        assert len(one) <= LONGEST_KEY
        assert one != other
        assert one == canonical("order:" + "x" * 500)

    def test_of_the_longest_length_is_left_alone(self) -> None:
        assert canonical("x" * 200) == "x" * 200
        assert canonical("x" * 201) != "x" * 201

    def test_is_never_cut_inside_an_escape(self) -> None:
        for before in range(3):
            head, _, digest = shorten("x" * before + "%E9" * 100).partition("~")
            assert re.fullmatch("x*(%E9)+", head)
            assert len(digest) == 48

    @pytest.mark.parametrize("key", ["", None, 42, b"order"])
    def test_that_is_no_text_is_refused(self, key: Any) -> None:
        with pytest.raises(ConfigurationError, match="a key"):
            canonical(key)
