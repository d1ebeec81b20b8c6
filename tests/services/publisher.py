"""A publisher as a process of its own: it declares the task, and does not have its code.

``python -m tests.services.publisher CONFIG``, a JSON file with ``name``, ``celery``, ``queues``,
``tasks`` (order and number, in the order of their publishing), ``lock``, ``folder`` and ``faults``.
It begins when the test says go, and ends after its last task.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import Ordered, locked_task
from tests.services import faults
from tests.services.lab import hold_at

Tasks = Sequence[tuple[str, int]]


def declare(config: Mapping[str, Any]) -> Any:
    """The task ``apply`` as a web application would declare it, on an app by another name."""
    app = Celery(config["name"], set_as_current=False)
    app.conf.update(config["celery"])

    options = {"on_contention": Ordered(), "ttl": 5.0, **config["lock"]}

    @locked_task("order:{order}", app=app, name="apply", **options)
    def apply(order: str, number: int = 0, hold: str | None = None) -> None: ...

    return apply


def main(config: Mapping[str, Any]) -> None:
    folder = Path(config["folder"])
    faults.install(folder, config["faults"])
    apply = declare(config)
    hold_at(folder, "publish")
    for index, (order, number) in enumerate(config["tasks"]):
        queue = config["queues"][index % len(config["queues"])]
        apply.apply_async((order, number), queue=queue, task_id=f"{config['name']}-{index:04}")


@contextmanager
def publishing(
    folder: Path,
    name: str,
    celery: Mapping[str, Any],
    tasks: Tasks,
    queues: Sequence[str] = ("celery",),
    faults: Sequence[Mapping[str, Any]] = (),
    lock: Mapping[str, Any] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The process, gone after the block."""
    file = folder / f"{name}.json"
    config = {"name": name, "celery": celery, "tasks": tasks, "queues": queues, "faults": faults}
    file.write_text(json.dumps({**config, "lock": lock or {}, "folder": str(folder)}))
    command = [sys.executable, "-m", "tests.services.publisher", str(file)]
    process = subprocess.Popen(command, start_new_session=True, env={**os.environ})
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
