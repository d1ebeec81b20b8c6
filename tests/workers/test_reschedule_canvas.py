"""Links, chains, groups and chords hang on a message that is published again as on the first."""

from __future__ import annotations

from typing import Any

from celery import chain, chord, group

from celery_dlock import LockedTask, lock
from tests.services.desk import Desk
from tests.workers.conftest import refused


def test_links_and_errbacks_are_called_once(desk: Desk) -> None:
    called = []

    @desk.app.task(name="called")
    def call(*args: Any) -> None:
        called.append(args)

    @desk.locked("order:{order}", name="maybe")
    def maybe(order: str, fails: bool) -> str:
        if fails:
            raise ValueError(order)
        return order

    for fails in (False, True):
        maybe.apply_async(("42", fails), link=call.si("good"), link_error=call.si("bad"))
        _, again = refused(desk)
        desk.run(again)
        desk.deliver_all()

    assert called == [("good",), ("bad",)]


def test_the_chain_goes_on_behind_it(desk: Desk, charge: LockedTask) -> None:
    result = chain(charge.s("42"), charge.si("42", 10), charge.si("43", 20))()

    for _ in range(2):
        _, again = refused(desk)
        desk.run(again)
    desk.deliver_all()

    assert result.get() == 21
    assert result.parent.get() == 11


def test_a_group_of_them_counts_every_member(desk: Desk, charge: LockedTask) -> None:
    result = group(charge.s("42"), charge.s("42", 1), charge.s("42", 2))()

    with lock("order:42", app=desk.app, timeout=0):
        for _ in range(3):
            desk.deliver()
    desk.deliver_all()

    assert result.get() == [1, 2, 3]


def test_its_place_in_a_chord_is_kept(desk: Desk, charge: LockedTask) -> None:
    chord([charge.s("42"), charge.s("43")], charge.si("44"))()

    first, other = refused(desk)
    again = desk.take()

    assert again is not None
    assert other.headers["group_index"] == 1
    assert again.headers["group"] == first.headers["group"] is not None
    assert again.headers["group_index"] == first.headers["group_index"] == 0
    embed, embed_again = first.payload[2], again.payload[2]
    assert embed["chord"] is not None
    assert embed_again == embed
