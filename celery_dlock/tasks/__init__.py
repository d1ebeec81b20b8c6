"""What a user writes: ``@locked_task``, ``LockedTask``, ``lock()``, an idempotency key.

It runs wherever tasks are defined; what a worker needs beside them is loaded when one starts.
"""

import re

from celery.app import utils

#: Settings that have a password in them, under any namespace; ``url`` is the one inside
#: ``dlock_history = {"url": …}``.
OURS = "DLOCK_(URL|HISTORY)|^URL$"


def mask_settings() -> None:
    """Add the names of our settings to those that Celery hides; once, however often it is called.

    ``celery report``, ``celery inspect conf`` and ``app.bugreport()`` hide settings by their names,
    and Celery cannot know ours (``docs/decisions/0026-settings-are-hidden-by-name.rst``). A release
    of Celery that hides them in another way is left alone; the doctor says what it shows.
    """
    hidden = getattr(utils, "HIDDEN_SETTINGS", None)
    if isinstance(hidden, re.Pattern) and OURS not in hidden.pattern:
        utils.HIDDEN_SETTINGS = re.compile(f"{hidden.pattern}|{OURS}", hidden.flags)


mask_settings()  # before anybody can have set one; the command `celery` imports its plugins first
