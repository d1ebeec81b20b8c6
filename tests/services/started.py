"""What is started at the beginning of a block and gone after it, also when the start fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """A server, or several that belong together."""

    @abstractmethod
    def start(self) -> None:
        """Start, and return when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Gone, with all that it has written; also what has only begun to start."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
