"""A child tells the worker's main process that a delivery has asked for its key.

The main process holds back what else wants a key that is waited for until all before it have asked
(``worker/parking.py``). What is not heard is not lost: a delivery that has ended has asked, too.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import ClassVar

#: Noted of a delivery of which the main process wants to hear.
FOLLOWED = "followed"

#: In front of the nonce of a delivery that waits for its key now, or has some other answer.
WAITS, ASKED = b"w", b"a"


class ToMain:
    """The way there, which children inherit; ``None`` where no main process listens."""

    way: ClassVar[socket.socket | None] = None

    @classmethod
    def tell(cls, nonce: str, *, waits: bool) -> None:
        """Never waits: what does not fit is not told."""
        if cls.way is not None:
            with suppress(OSError):
                cls.way.send((WAITS if waits else ASKED) + nonce.encode())
