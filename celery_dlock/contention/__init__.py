"""What to do when the key is taken: one policy a file, each a pure decision."""

from celery_dlock.contention.base import (
    Complete,
    Contention,
    Decision,
    GiveUp,
    HolderInfo,
    Policy,
    Queueing,
    RunLater,
    WaitHere,
    patience,
    queueing,
)
from celery_dlock.contention.fail import Fail
from celery_dlock.contention.named import policy_named
from celery_dlock.contention.queue import Queue, Replace
from celery_dlock.contention.reschedule import Reschedule
from celery_dlock.contention.skip import Skip, skipped
from celery_dlock.contention.wait import Wait

__all__ = [
    "Complete",
    "Contention",
    "Decision",
    "Fail",
    "GiveUp",
    "HolderInfo",
    "Policy",
    "Queue",
    "Queueing",
    "Replace",
    "Reschedule",
    "RunLater",
    "Skip",
    "Wait",
    "WaitHere",
    "patience",
    "policy_named",
    "queueing",
    "skipped",
]
