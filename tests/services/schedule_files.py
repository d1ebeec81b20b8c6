"""Schedule files of one kind, whichever databases this Python was built with.

Debian's has one that writes when it is closed, and then more than was changed; that of most others
writes at once, and leaves alone what was not written.
"""

from __future__ import annotations

import dbm
from dbm import dumb
from typing import Any


def written_at_once() -> None:
    """From now on ``shelve`` makes and opens such files in this process."""
    module: Any = dbm
    module._defaultmod = module._modules["dbm.dumb"] = dumb
