"""What has lost its lock or its worker on the way: a charge, and the end of an order."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import select

from example_project.compare.gates import Gates
from tests.demo.shop.conftest import Shop
from tests.services.until import until


@pytest.mark.slow
def test_a_charge_that_comes_too_late_takes_nothing(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    gates = Gates(shop.folder)
    gates.close(["charge"])
    client = shop.web.create_app({"lamp": (4900, 1)}).test_client()
    client.post("/orders", json={"sku": "lamp"})
    with shop.crew(2, SHOP_SLOW="example_project.compare.gates:reach") as crew:
        # Given a charge that has checked its lease, and is paused before it calls the provider
        paused, *_ = until("it is about to charge", lambda: gates.standing("charge"), timeout=120)
        crew[paused].pause_between_writes(shop.folder, threading.Event().wait)
        gates.open("charge")
        # And meanwhile the order is called off, and the item goes back
        assert client.delete("/orders/1").status_code == 202
        until("the item is back", lambda: shop.left("lamp") == 1, timeout=120)
        # When the charge goes on
        crew[paused].resume()
        # Then its write is refused, and so was its charge: the key had been cancelled
        until("the late write is refused", shop.refused, timeout=120)
        assert shop.states() == {"called off": 1}
        assert shop.provider.charges() == []
        # And people hear of it
        until("an alert", lambda: alerts(shop), timeout=60)
    assert "order:1" in alerts(shop)[0]


@pytest.mark.slow
def test_a_calling_off_that_dies_halfway_is_ended_by_another(sqlite_shop: Shop) -> None:
    shop = sqlite_shop
    gates = Gates(shop.folder)
    client = shop.web.create_app({"lamp": (4900, 1)}).test_client()
    client.post("/orders", json={"sku": "lamp"})
    with shop.crew(2, SHOP_SLOW="example_project.compare.gates:reach") as crew:
        until("it is paid", lambda: shop.states() == {"paid": 1}, timeout=120)
        # Given an order that is being called off, by a worker that dies before the money is back
        gates.close(["call_off"])
        assert client.delete("/orders/1").status_code == 202
        killed, *_ = until("it has begun", lambda: gates.standing("call_off"), timeout=120)
        crew[killed].kill()
        gates.release(killed)
        gates.open("call_off")
        assert shop.provider.charges() == [(1, 4900)]
        # When people are reminded, as they are every minute
        shop.tasks.remind()
        # Then the money and the item go back
        until("it is called off", lambda: shop.states() == {"called off": 1}, timeout=120)
        assert shop.provider.charges() == []
        assert shop.left("lamp") == 1


def alerts(shop: Shop) -> list[str]:
    with shop.models.Transaction() as db:
        return list(db.scalars(select(shop.models.Alert.text)))
