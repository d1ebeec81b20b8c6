"""The tasks that README's tables write, each around the same body, for real workers.

``tests.services.readme:app`` is built where ``LAB_CONFIG`` names a file with its configuration.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

import celery_dlock
from celery_dlock import LockedTask
from tests.services.lab import Journal, hold_at

_TEXT = (Path(__file__).resolve().parents[2] / "README.md").read_text()


#: What is wanted, and what is written for it.
_TABLE = _TEXT.partition("| I want … | I write … |\n|---|---|\n")[2].partition("\n\n")[0]
ROWS: dict[str, str] = dict(re.findall(r"^\| (.+) \| `(.+)` \|$", _TABLE, re.MULTILINE))

#: The names of the policies.
POLICIES = re.findall(r'^\| `"(\w+)"`', _TEXT, re.MULTILINE)

#: A task for each row that is one, and for each policy; the last is for a row that needs it.
TASKS = {
    **{wanted: written for wanted, written in ROWS.items() if written.startswith("@")},
    **{name: f'@locked_task("order:{{order_id}}", on_contention="{name}")' for name in POLICIES},
    "writer": '@locked_task("catalog")',
}


class Durable(LockedTask):
    """As in README."""

    acks_late = reject_on_worker_lost = True
    time_limit = 300


def make_app(config: Mapping[str, Any]) -> Celery:
    """An application with ``TASKS``; what their bodies do is in the journal of its folder.

    With *hold* they stay in the body until the test says go.
    """
    app = Celery("readme", set_as_current=False)
    app.conf.update(config["celery"])
    folder = Path(config["folder"])
    journal = Journal(folder / "journal")

    def body(self: Any, number: int, hold: bool, **about: Any) -> int:
        about |= {"task": self.name, "id": self.request.id, "number": number}
        journal.write("start", **about)
        if hold:
            hold_at(folder, "on", timeout=240)
        journal.write("end", **about)
        return number

    names = {name: getattr(celery_dlock, name) for name in celery_dlock.__all__}
    names |= {"app": app, "body": body, "Durable": Durable, "__name__": __name__}
    for name, written in TASKS.items():
        exec(
            f"{written[:-1]}, app=app, base=Durable, bind=True, name={name!r})\n"
            "def task(self, number, hold=False, order_id=42, tenant='acme'):\n"
            "    return body(self, number, hold, order=order_id, tenant=tenant)\n",
            names,
        )
    return app


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    config = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())
    return globals().setdefault("app", make_app(config))
