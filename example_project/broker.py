"""A broker without a server: kombu's filesystem transport, made safe for several processes.

kombu opens a message under its final name before it writes it, so a reader can take an empty
one; and it makes the file of an exchange's bindings in the same way. Here everything is written
under a temporary name and renamed, and a message is taken by renaming it into a folder of its
own, which only one process can win. Like kombu's it delivers nothing again after a kill.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
import uuid
from fcntl import LOCK_EX, flock
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps, loads

#: Seconds. Celery itself would wait for 2, and 5.5 acknowledges nothing until then.
BACK_AFTER = 0.05


def transport_options(folder: Path) -> dict[str, Any]:
    """Make the broker's folders below *folder*; the value of ``broker_transport_options``."""
    folders = {name: folder / name for name in ("control", "messages", "taken", "writing")}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    return {
        "control_folder": str(folders["control"]),
        "data_folder_in": str(folders["messages"]),
        "data_folder_out": str(folders["messages"]),
        "processed_folder": str(folders["taken"]),
        "writing_folder": str(folders["writing"]),
        "polling_interval": 0.02,
    }


class Channel(filesystem.Channel):
    """A channel on which no message is seen before it is whole."""

    def _put(  # type: ignore[override]  # as kombu's own
        self, queue: str, payload: Any, **_: Any
    ) -> None:
        name = f"{time.time_ns():020}_{uuid.uuid4().hex}.{queue}.msg"
        self._write(Path(self.data_folder_out) / name, payload)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        waiting = Path(self.data_folder_in)
        for name in sorted(path.name for path in waiting.iterdir()):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            taken = Path(self.processed_folder) / name
            try:
                (waiting / name).rename(taken)
            except FileNotFoundError:
                continue  # another process was faster
            message = loads(taken.read_bytes())
            taken.unlink()
            return message
        raise Empty

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        binding = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        with (self.control_folder / "mutex").open("w") as mutex:
            flock(mutex, LOCK_EX)
            bindings = self.get_table(exchange)
            if binding not in bindings:
                self._write(self.control_folder / f"{exchange}.exchange", [binding, *bindings])

    def _write(self, path: Path, content: Any) -> None:
        written = Path(self.transport_options["writing_folder"]) / f"{uuid.uuid4().hex}.part"
        written.write_bytes(dumps(content).encode())
        written.rename(path)


class Transport(filesystem.Transport):
    """Set as ``broker_transport = "example_project.broker:Transport"``."""

    Channel = Channel

    def drain_events(  # type: ignore[override]
        self, connection: Any, timeout: float | None = None
    ) -> None:
        """Return to the worker often: between two calls it acknowledges and hears of a shutdown."""
        super().drain_events(connection, min(timeout or BACK_AFTER, BACK_AFTER))
