"""What a user writes: ``@locked_task``, ``LockedTask``, ``lock()``, an idempotency key.

It runs wherever tasks are defined. The rest of a worker is loaded when one starts.
"""

import re

from celery.app import utils

#: The names of settings with a password in them, under any namespace; ``url`` is that of
#: ``dlock_history = {"url": …}``.
SECRETS = "DLOCK_(URL|HISTORY)|^URL$"


def mask_settings() -> None:
    """Add the library's settings to those that Celery hides; once, however often it is called.

    ``celery report``, ``celery inspect conf`` and ``app.bugreport()`` hide settings by their names,
    and does not know these (``docs/decisions/0026-settings-are-hidden-by-name.rst``). A release of
    Celery that hides settings in another way is left alone; the doctor says what it shows.
    """
    hidden = getattr(utils, "HIDDEN_SETTINGS", None)
    if isinstance(hidden, re.Pattern) and SECRETS not in hidden.pattern:
        utils.HIDDEN_SETTINGS = re.compile(f"{hidden.pattern}|{SECRETS}", hidden.flags)


mask_settings()  # before any is read: the command `celery` imports its plugins first
