"""What the Celery apps in here share: no server, everything in files below ``SHOP_DIR``.

Or the orders and the locks in one PostgreSQL database, whose URL is ``SHOP_DATABASE``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from example_project.broker import transport_options

FOLDER = Path(os.environ.get("SHOP_DIR", "var/shop")).resolve()
FOLDER.mkdir(parents=True, exist_ok=True)

POSTGRESQL = os.environ.get("SHOP_DATABASE")
ORDERS = (POSTGRESQL or f"sqlite:///{FOLDER / 'shop.db'}").replace(
    "postgresql:", "postgresql+psycopg:"
)
LOCKS = POSTGRESQL or f"sqlite:///{FOLDER / 'dlock.db'}"

SETTINGS: dict[str, Any] = {
    "broker_url": "filesystem://localhost",
    "broker_transport": "example_project.broker:Transport",
    "broker_transport_options": transport_options(FOLDER / "broker"),
    "broker_connection_retry_on_startup": True,
    "dlock_url": LOCKS,
    "dlock_ttl": 3,  # for the demo: a key whose worker has died is free again soon; usual is 30
    "dlock_sinks": ["example_project.journal:note"],
    "task_acks_late": True,  # of all tasks, as those that are not locked are to be compared
    "task_reject_on_worker_lost": True,
    "task_time_limit": 60,  # else a body that hangs keeps its key
    "task_ignore_result": True,
    "worker_prefetch_multiplier": 1,
    "worker_enable_remote_control": False,
}
