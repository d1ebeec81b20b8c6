"""What only goes wrong where the store fails over to a replica that knows less than it did."""

from __future__ import annotations

from tests.model.config import FAILOVER, Config, Task
from tests.model.defects import Defect

FORGETS = (
    Defect(
        "who has lost a lock of which the store knows nothing leaves no message there",
        "_conclude",
        "            if kept(state, task):\n",
        "            if kept(state, task) or not (held or runs_lost(state, task)):\n",
        "S8",
        Config("two that queue, fails over", (Task(),) * 2, faults=1, kinds=frozenset({FAILOVER})),
    ),
)
