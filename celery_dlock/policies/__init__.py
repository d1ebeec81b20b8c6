"""What to do when the key is taken: policies, each a pure decision.

Here is what a policy of your own needs; the names in ``celery_dlock`` are those that are shipped.
"""

from celery_dlock.policies.base import (
    Complete,
    Contention,
    Decision,
    GiveUp,
    HolderInfo,
    Policy,
    RunLater,
    WaitHere,
)

__all__ = [
    "Complete",
    "Contention",
    "Decision",
    "GiveUp",
    "HolderInfo",
    "Policy",
    "RunLater",
    "WaitHere",
]
