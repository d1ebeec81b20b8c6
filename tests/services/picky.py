"""A serializer by which a worker's main process can read a message and its children cannot."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

from billiard.process import current_process
from kombu.serialization import register
from kombu.utils.json import dumps, loads

CONTENT_TYPE = "application/x-picky"


def read(data: str) -> Any:
    if current_process().name != "MainProcess":
        raise ValueError("a child cannot read this")
    return loads(data)


register("picky", dumps, read, CONTENT_TYPE, "utf-8")
