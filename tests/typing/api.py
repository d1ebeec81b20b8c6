"""The public types, pinned: mypy and pyright read this file, nobody runs it."""

from __future__ import annotations
