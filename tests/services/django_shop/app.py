"""The Celery application, its task, and the requests that are served."""

from __future__ import annotations

from celery import Celery
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from celery_dlock import Queue, lock, locked_task

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")


@locked_task("order:{order}", app=app, on_contention=Queue())
def charge(order: int, *, fencing_token: int = 0) -> None:
    for began in (True, False):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("INSERT INTO charge VALUES (%s, %s)", [fencing_token, began])


def pay(request: HttpRequest, order: int) -> HttpResponse:
    """Answer with the token of the order's lock, or fail while it is held."""
    with lock(f"order:{order}", app=app) as lease:
        if "fail" in request.GET:
            raise ZeroDivisionError
        return HttpResponse(str(lease.fencing_token))


urlpatterns = [path("pay/<int:order>", pay)]
