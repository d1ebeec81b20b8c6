"""The rules of unique claims, and under which name a call's claim stands."""

# mypy: allow-untyped-calls

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import DecodeError, EncodeError
from kombu.serialization import dumps, loads

from celery_dlock import ConfigurationError, Unique
from celery_dlock.core.keys import KeyTemplate
from celery_dlock.core.unique import GRACE, Called, UniqueClaim, begun, called, ended, met
from celery_dlock.locks.unique import UniqueClaims, Uniqueness
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.stores.unreadable import UnreadableKey

NOW = 1_000_000.0
MINE = UniqueClaim("mine:0:0", "report", "web:1", NOW)
SENT = UniqueClaim("theirs:0:0", "report", "web:2", NOW)
LATE = replace(SENT, heard=NOW - GRACE - 1)
HELD = replace(LATE, key="day:1")
GONE = replace(HELD, acked=True)
OVER = replace(GONE, period_ends=NOW + 1, over=True)


@pytest.mark.parametrize(
    ("stands", "lives", "publish", "duplicate"),
    [
        pytest.param(None, False, True, False, id="nothing"),
        pytest.param(SENT, False, False, True, id="on its way"),
        pytest.param(LATE, False, True, True, id="on its way for too long"),
        pytest.param(replace(LATE, heard=NOW + 3600), False, False, True, id="due in an hour"),
        pytest.param(HELD, True, False, True, id="runs"),
        pytest.param(HELD, False, True, True, id="ran, and the broker has it"),
        pytest.param(GONE, True, False, True, id="runs, and the broker has it not"),
        pytest.param(GONE, False, True, False, id="died"),
        pytest.param(OVER, False, False, True, id="over, in its period"),
        pytest.param(replace(SENT, task="mine:0:0"), False, True, False, id="the same call again"),
    ],
)
def test_what_becomes_of_a_call(
    stands: UniqueClaim | None, lives: bool, publish: bool, duplicate: bool
) -> None:
    answer = called(stands, MINE, NOW, lambda: lives)

    assert (answer.publish, answer.duplicate) == (publish, duplicate)
    assert answer.claim.task_id == ("theirs" if duplicate else "mine")
    assert publish or answer.claim == stands


def test_what_runs_or_waits_is_looked_for_only_where_that_decides() -> None:
    recently = replace(HELD, heard=NOW)

    for stands in (SENT, recently, OVER):
        assert called(stands, MINE, NOW, _is_not_asked).claim == stands
    for task in ("theirs:0:0", "mine:0:0"):
        assert met(replace(OVER, task=task), MINE, _is_not_asked)[0].task == task
    assert begun(OVER, "mine", NOW, _is_not_asked) == (OVER, "theirs")


def _is_not_asked() -> bool:
    raise AssertionError("the store was asked")


@pytest.mark.parametrize(
    ("stands", "lives", "other"),
    [
        (None, False, None),
        (SENT, False, None),
        (LATE, False, None),
        (HELD, True, "theirs"),
        (HELD, False, None),
        (GONE, False, None),
        (OVER, False, "theirs"),
        (replace(HELD, task="mine:0:0"), False, None),
    ],
)
def test_a_message_that_is_here_gives_way_only_to_one_that_lives(
    stands: UniqueClaim | None, lives: bool, other: str | None
) -> None:
    here = replace(MINE, key="day:2")

    assert met(stands, here, lambda: lives)[1] == other
    assert begun(stands, "mine", NOW, lambda: lives)[1] == other
    if other is not None:
        assert met(stands, here, lambda: lives)[0] == stands
        assert begun(stands, "mine", NOW, lambda: lives)[0] == stands


CLAIMS = st.builds(
    UniqueClaim,
    task=st.sampled_from(["mine:0:0", "mine:1:0", "theirs:0:0"]),
    name=st.just("report"),
    where=st.text(),
    heard=st.floats(0, 2 * NOW),
    key=st.sampled_from(["", "day:1"]),
    acked=st.booleans(),
    period_ends=st.sampled_from([0.0, NOW + 1]),
    over=st.booleans(),
    again=st.booleans(),
)


@given(CLAIMS)
def test_no_task_ends_what_is_anothers(stands: UniqueClaim) -> None:
    after = ended(stands, "mine", NOW)

    if stands.task_id != "mine":
        assert after == stands
    else:
        assert after is None or (after.over and after.period_ends > NOW)


@given(CLAIMS, st.booleans(), st.integers(0, 3))
def test_a_call_is_answered_with_a_claim_that_stands_and_nobody_is_swallowed_for_ever(
    stands: UniqueClaim, lives: bool, minutes: int
) -> None:
    """Whoever is not published is answered with what the store shows, or by something recent."""
    now = NOW + minutes * GRACE
    answer = called(stands, MINE, now, lambda: lives)

    if not answer.publish:
        assert lives or stands.over or now - stands.heard <= GRACE
    if answer.publish and answer.duplicate:  # the next call is not published within a minute
        assert not called(answer.claim, MINE, now + GRACE, lambda: False).publish


@given(CLAIMS)
def test_it_is_read_as_it_was_written(claim: UniqueClaim) -> None:
    assert UniqueClaim.decode(claim.encode()) == claim


def test_what_a_later_version_says_besides_is_left_out() -> None:
    told = MINE.encode()[:-1] + b', "more": [1]}'

    assert UniqueClaim.decode(told) == MINE


def test_what_cannot_be_read_is_said_and_stays() -> None:
    store = MemoryBackend(BackendOptions())
    store.swap("report(1)", None, b"nonsense", 10**9)

    with pytest.raises(UnreadableKey, match="report"):
        UniqueClaims(store).call("report(1)", MINE, 60)

    assert store.swap("report(1)", None, None, 0) == b"nonsense"


def test_how_long_it_lasts() -> None:
    assert MINE.lasts(60, NOW) == 60
    assert replace(MINE, heard=NOW + 3600).lasts(60, NOW) == 3660
    assert replace(MINE, period_ends=NOW + 90).lasts(60, NOW) == 90
    assert OVER.lasts(60, NOW) == 1


def test_the_same_call_said_twice_is_the_same() -> None:
    store = MemoryBackend(BackendOptions())
    claims = UniqueClaims(store)

    text, first = claims.call("report(1)", MINE, 60)
    _, again = claims.call("report(1)", replace(MINE, heard=NOW + 1), 60)

    assert text == MINE.encode()
    assert first == Called(MINE, publish=True, duplicate=False)
    assert (again.publish, again.duplicate) == (True, False)


class Overtaken(MemoryBackend):
    """Of what is changed under a name, another process changes it first, so many *times*."""

    times = 0
    swaps = 0

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        self.swaps += 1
        if was is not None and self.times:
            self.times -= 1
            claim = UniqueClaim.decode(super().swap(name, None, None, 0) or b"")
            moved = replace(claim, where=f"{claim.where}.")
            super().swap(name, claim.encode(), moved.encode(), stays)
        return super().swap(name, was, becomes, stays)


def test_a_duplicate_asks_and_writes_nothing() -> None:
    store = Overtaken(BackendOptions())
    claims = UniqueClaims(store, lambda: NOW)
    stands, _ = claims.call("report(1)", SENT, 60)
    store.swaps = 0

    for number in range(1, 4):
        text, answer = claims.call("report(1)", MINE, 60)

        assert (answer, text) == (Called(SENT, publish=False, duplicate=True), stands)
        assert store.swaps == number
    assert store.swap("report(1)", None, None, 0) == stands


def test_what_has_to_be_written_is_written_however_many_are_faster() -> None:
    store = Overtaken(BackendOptions())
    claims = UniqueClaims(store, lambda: NOW)
    claims.call("report(1)", LATE, 60)
    store.times = 500

    _, again = claims.call("report(1)", MINE, 60)
    store.times = 500
    claims.end("report(1)", "theirs", 60, None)

    assert (again.publish, again.duplicate) == (True, True)
    assert store.swap("report(1)", None, None, 0) is None


# The name.


def named(body: Callable[..., Any], unique: Any = "done") -> Uniqueness:
    locks = KeyTemplate.compile(None, inspect.signature(body), default="report")
    return Uniqueness.of("report", Unique.named(unique), locks)


def test_what_has_its_default_is_no_part_of_it() -> None:
    def before(day: Any, depth: int = 1) -> None: ...
    def after(day: Any, depth: int = 1, *, tags: tuple[str, ...] = ()) -> None: ...

    old, new = named(before), named(after)

    assert old.name((1,), {}) == new.name((1,), {}) == new.name((1, 1), {"tags": []})
    assert new.name((1,), {"tags": ["a"]}) != new.name((1,), {})


DAY = date(2026, 1, 1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((1, "1"), (1, 1.0), (1, True), (0, "0"), (None, "None"), (None, ""), (True, "True")),
        *((1.5, "1.5"), (Decimal("1.5"), 1.5), (Decimal("1.5"), "1.5"), (b"x", "x")),
        *((UUID(int=1), str(UUID(int=1))), (DAY, "2026-01-01"), (DAY, datetime(2026, 1, 1))),
        *((NOON, NOON.isoformat()), (NOON, NOON.replace(tzinfo=None)), ("int'1", 1)),
        *(([1], "[1]"), ([1], ["1"]), (["a"], ["'a'"]), ([], {}), ([1], {1})),
        ({"a": 1}, {"a": "1"}),
    ],
    ids=repr,
)
def test_what_differs_in_type_is_not_the_same_call(one: Any, other: Any) -> None:
    """Also where one of the two is the default."""

    def body(value: Any, given: Any = one) -> None: ...

    unique = named(body)

    assert unique.name((one,), {}) != unique.name((other,), {})
    assert unique.name((0, one), {}) == unique.name((0,), {}) != unique.name((0, other), {})


class Size(StrEnum):
    SMALL = "small"


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    "value",
    [
        *(1, "1", 1.0, True, None, "", b"x", Decimal("1.50"), UUID(int=1), DAY, NOON, time(1, 2)),
        *(NOON.replace(tzinfo=None), NOON.astimezone(timezone(timedelta(hours=1)))),
        *((1, ("a", None)), [], {"a": (1, 2.5)}, {1: {2: 3}}, {1, 2}, Size.SMALL, Level.LOW),
        Point(1, 2),
    ],
    ids=repr,
)
def test_a_worker_that_has_the_message_knows_the_same_call(value: Any) -> None:
    unique, carried = named(lambda value: None), 0
    for serializer in ("json", "msgpack", "yaml", "pickle"):
        with suppress(EncodeError, DecodeError):  # not each carries each
            message: Any = dumps(((value,), {}), serializer=serializer)
            content_type, encoding, data = message
            args, kwargs = loads(data, content_type, encoding, accept=[content_type])
            assert unique.name(args, kwargs) == unique.name((value,), {})
            carried += 1

    assert carried


def test_calls_that_lock_different_keys_are_not_the_same() -> None:
    """A callable may read more than the arguments."""
    tenants = ["acme"]

    def body(order: int) -> None: ...

    def key(order: int) -> str:
        return f"{tenants[0]}:{order}"

    locks = KeyTemplate.compile([key, "all"], inspect.signature(body), default="report")
    unique = Uniqueness.of("report", Unique(), locks)
    first, again = unique.name((1,), {}), unique.name((), {"order": 1})
    tenants[0] = "zenith"

    assert first == again != unique.name((1,), {})
    tenants.clear()
    with pytest.raises(ConfigurationError, match=r"key cannot be made .* say by="):
        unique.name((1,), {})


def test_arguments_may_be_secret_and_are_not_shown() -> None:
    def body(card: str = "", *, order: int = 0) -> None: ...

    assert named(body).name(("4111-1111",), {}).startswith("report(~")
    assert "4111" not in named(body).name(("4111-1111",), {})
    assert named(body).name((), {}) == "report()"
    assert named(body, Unique(by="order:{order}")).name((), {"order": 7}) == "report(order:7)"


def test_arguments_without_a_name_count_too() -> None:
    def body(*days: Any, **more: Any) -> None: ...

    unique = named(body)

    names = {
        unique.name(args, kwargs)
        for args, kwargs in [((), {}), ((1,), {}), ((1, 2), {}), ((), {"a": 1}), ((), {"b": 1})]
    }
    assert len(names) == 5


def test_a_default_without_a_text_is_known_as_itself() -> None:
    nothing = object()

    def body(day: Any, given: Any = nothing) -> None: ...

    unique = named(body)

    assert unique.name((1, nothing), {}) == unique.name((1,), {})
    with pytest.raises(ConfigurationError, match="say by="):
        unique.name((1, object()), {})


@pytest.mark.parametrize(
    "by", ["{source}:{target}", lambda source, target, more: f"{source}:{target}"]
)
def test_by_several(by: Any) -> None:
    def move(source: Any, target: Any, more: Any = 0) -> None: ...

    unique = named(move, Unique(by=by))

    names = [unique.name(args, {}) for args in [(1, 2), (2, 1), (1, 1), (1, 2, 3)]]
    assert names[3] == names[0]
    assert len(set(names)) == 3


def test_by_a_list_is_refused_for_its_order_would_not_count() -> None:
    def move(source: Any, target: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="one template or callable"):
        named(move, Unique(by=["{source}", "{target}"]))  # type: ignore[arg-type]


def test_what_cannot_be_called_like_that_is_said_as_python_says_it() -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        named(lambda day: None).name((), {})
