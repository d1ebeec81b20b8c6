"""The data is in SQLite; broker, results and locks are in one Redis."""

import os
from pathlib import Path
from typing import Any

DATABASE = "sqlite:///shop.db"

if "WITHOUT_REDIS" in os.environ:  # files, for a first look on one machine
    CELERY: dict[str, Any] = {
        "broker_url": "sqla+sqlite:///broker.db",
        "result_backend": "db+sqlite:///results.db",
        "dlock_url": f"sqlite:///{Path('locks.db').absolute()}",
    }
else:
    REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")
    CELERY = {
        "broker_url": f"{REDIS}/0",
        "result_backend": f"{REDIS}/1",
        "dlock_url": f"{REDIS}/2",
        "broker_transport_options": {"visibility_timeout": 3600},
    }
CELERY["worker_prefetch_multiplier"] = 1  # no task waits in a worker that is busy with others
CELERY["result_backend_always_retry"] = True
