"""One item, two hundred orders at once, a worker killed and another paused: it is sold once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from example_project.compare.gates import Gates
from tests.demo.shop.conftest import Shop
from tests.services.until import until

ORDERS = 200

pytestmark = pytest.mark.slow


def order_from_everywhere(shop: Shop) -> None:
    """Over the web, eight customers at a time."""
    web = shop.web.create_app({"vase": (9900, 1)})
    with ThreadPoolExecutor(8) as customers:
        answers = customers.map(
            lambda _: web.test_client().post("/orders", json={"sku": "vase"}).status_code,
            range(ORDERS),
        )
        assert set(answers) == {202}


def test_the_last_item_is_sold_once(shop: Shop) -> None:
    gates = Gates(shop.folder)
    gates.close(["reserve"])
    order_from_everywhere(shop)

    def standing(*not_these: int) -> int | None:
        return next((g for g in gates.standing("reserve") if g not in not_these), None)

    with shop.crew(3, SHOP_SLOW="example_project.compare.gates:reach") as crew:
        # Given a worker that is killed when it has seen that one is left
        killed = until("somebody has read", standing, timeout=120)
        assert killed
        crew[killed].kill()
        gates.release(killed)
        # And one that is paused there, until its lease has ended and another has read
        paused = until("the next has read", standing, timeout=120)
        assert paused
        crew[paused].pause_between_writes(shop.folder, threading.Event().wait)
        until("another has read", lambda: standing(paused), timeout=120)
        # When it goes on
        gates.release(paused)
        crew[paused].resume()
        # Then its write is refused
        until("a late write is refused", shop.refused, timeout=120)
        # And however all others go on, the item is sold once and paid once
        gates.open("reserve")
        shop.settle()
    assert shop.states() == {"paid": 1, "sold out": ORDERS - 1}
    assert shop.left("vase") == 0
    assert [amount for _, amount in shop.provider.charges()] == [9900]
    # And where locks and orders are in one database, the fence was the holder's row
    with shop.models.engine.begin() as db:
        fenced = db.scalar(text("SELECT count(*) FROM dlock_fence"))
        assert (fenced == 0) == (db.dialect.name == "postgresql")
