"""What to do when the key is taken: policies, each a pure decision."""

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
    replaces_running,
)
from celery_dlock.contention.policies import (
    Fail,
    Queue,
    Replace,
    Reschedule,
    Skip,
    Wait,
    policy_named,
    skipped,
)

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
    "replaces_running",
    "skipped",
]
