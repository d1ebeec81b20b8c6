"""The web face of the shop. Views that are no coroutines run in threads, as FastAPI has it."""

import asyncio
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from celery_dlock import BackendUnavailable, LockContended, fencing, lock
from fastapi_shop.celery import app
from fastapi_shop.models import Order, Transaction
from fastapi_shop.tasks import charge

web = FastAPI()


@web.post("/orders", status_code=201)
def create(amount: int) -> dict[str, int]:
    with Transaction.begin() as db:
        order = Order(amount=amount)
        db.add(order)
        db.flush()
        order_id = order.id
    charge.delay(order_id)  # after the commit
    return show(order_id)


@web.get("/orders/{order_id}")
def show(order_id: int) -> dict[str, int]:
    with Transaction() as db:
        order = db.get(Order, order_id)
        if order is None:
            raise HTTPException(404)
        return {"id": order.id, "amount": order.amount, "paid": order.paid}


@web.post("/orders/{order_id}/charge", status_code=202)
def charge_again(order_id: int) -> dict[str, Any]:
    """The customer presses the button twice: the second task waits for the first."""
    return {"task": charge.delay(order_id).id}


@web.post("/orders/{order_id}/refund")
async def refund(order_id: int) -> dict[str, int]:
    """Takes the lock of the order's tasks, without blocking the event loop."""
    async with lock(f"order:{order_id}", app=app, timeout=0):
        await asyncio.to_thread(pay_back, order_id)  # the thread is under the same lock
    return await asyncio.to_thread(show, order_id)


def pay_back(order_id: int) -> None:
    with Transaction.begin() as db:
        fencing.admit(db)
        db.get_one(Order, order_id).paid = 0


@web.exception_handler(LockContended)
async def is_taken(request: Request, taken: LockContended) -> JSONResponse:
    """The answer of every view whose lock another one has: who it is."""
    return JSONResponse({"error": str(taken), "holder": taken.holder}, status_code=409)


@web.exception_handler(BackendUnavailable)
async def is_away(request: Request, away: BackendUnavailable) -> JSONResponse:
    """The answer while the lock store is down. Tasks need none: they are rescheduled."""
    return JSONResponse({"error": "try again later"}, status_code=503)
