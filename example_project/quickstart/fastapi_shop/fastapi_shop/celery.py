"""The Celery application: ``celery -A fastapi_shop worker``."""

import os
from pathlib import Path

from celery import Celery

app = Celery("fastapi_shop", include=["fastapi_shop.tasks"])
app.conf.worker_prefetch_multiplier = 1  # no task waits in a worker that is busy with others
app.conf.result_backend_always_retry = True

if "WITHOUT_REDIS" in os.environ:  # files, for a first look on one machine
    app.conf.update(
        broker_url="sqla+sqlite:///broker.db",
        result_backend="db+sqlite:///results.db",
        dlock_url=f"sqlite:///{Path('locks.db').absolute()}",
    )
else:
    REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")
    app.conf.update(
        broker_url=f"{REDIS}/0",
        result_backend=f"{REDIS}/1",
        dlock_url=f"{REDIS}/2",
        broker_transport_options={"visibility_timeout": 3600},
    )
