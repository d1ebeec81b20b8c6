"""The typed form of a body: what the library passes in has a default, which no body ever sees."""

from __future__ import annotations

import inspect
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, get_args

import pytest

from celery_dlock import INJECTED, ConfigurationError, Lease, LockedTask, fencing, locked_task
from celery_dlock.policies.shipped import POLICIES, PolicyName
from tests.services.desk import Desk


def test_however_it_is_called_a_body_gets_the_real_token_and_lease(desk: Desk) -> None:
    @locked_task("order:{order}", app=desk.app, name="charge")
    def charge(
        order: int, *, fencing_token: int = INJECTED, lease: Lease = INJECTED
    ) -> tuple[int, int]:
        return fencing_token, lease.fencing_token

    delivered = charge.delay(42)
    chained = charge.s(42).delay()
    desk.deliver_all()

    got = [charge(42), tuple(delivered.get()), tuple(chained.get()), charge.apply((42,)).get()]
    assert all(token == of_the_lease for token, of_the_lease in got)
    assert len({token for token, _ in got}) == 4


def test_a_caller_does_not_pass_it_with_a_default_either(desk: Desk) -> None:
    @locked_task("order:{order}", app=desk.app, name="charge")
    def charge(order: int, *, fencing_token: int = INJECTED) -> None: ...

    for call in (charge, charge.delay):
        with pytest.raises(TypeError, match="handed to the body by celery_dlock"):
            call(42, fencing_token=7)


USES: dict[str, Callable[[Any], object]] = {
    "int()": int,
    "float()": float,
    "hex()": hex,
    "+": lambda it: it + 1,
    "<": lambda it: it < 7,
    "7 <": lambda it: 7 < it,  # noqa: SIM300
    "==": lambda it: it == 7,
    "!=": lambda it: it != 7,
    "in a list of tokens": lambda it: it in [7],
    "if": bool,
    "str()": str,
    "an f-string": lambda it: f"{it}",
    "%s": lambda it: "%s" % it,  # noqa: UP031
    "JSON": json.dumps,
    "check()": lambda it: it.check(),
    "a lease's token": lambda it: it.fencing_token,
}


@pytest.mark.parametrize("use", USES)
def test_where_the_library_passed_nothing_the_default_is_no_token_and_no_lease(use: str) -> None:
    with pytest.raises((TypeError, AttributeError)):
        USES[use](INJECTED)


def test_no_database_and_no_fence_takes_the_default_for_a_token() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        fencing.create_table(db)
        with pytest.raises(sqlite3.Error):
            db.execute("SELECT ?", (INJECTED,))
        with pytest.raises((TypeError, ConfigurationError)), db:
            fencing.admit(db, resource="order:42", fencing_token=INJECTED, owner="me")
        with pytest.raises((TypeError, AttributeError, ConfigurationError)), db:
            fencing.admit(db, INJECTED)
        assert db.execute("SELECT count(*) FROM dlock_fence").fetchone() == (0,)


def test_signatures_with_the_default_are_shown_and_compared() -> None:
    def charge(order: int, *, fencing_token: int = INJECTED) -> None: ...

    assert "fencing_token: 'int' = INJECTED" in str(inspect.signature(charge))
    assert inspect.signature(charge) == inspect.signature(charge)


def test_lockedtask_with_types_is_a_base_class_as_without_them(desk: Desk) -> None:
    class Mixin:
        pass

    class Alerting(LockedTask[..., int], Mixin):
        abstract = True

    @locked_task("order:{order}", app=desk.app, base=Alerting, name="charge")
    def charge(order: int) -> int:
        return order

    assert isinstance(charge, Alerting)
    assert charge(42) == 42


def test_type_checkers_know_the_name_of_every_policy() -> None:
    assert set(get_args(PolicyName)) == set(POLICIES)
