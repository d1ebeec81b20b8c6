"""Who a visitor is: a cookie that only the holder of the site's token can have been given.

Nothing is kept here. A cookie says when it ends and is signed with the token, so it is worth
nothing after the token has changed; the secret in a form is derived from the cookie it goes with.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from celery_dlock.errors import ConfigurationError

#: Seconds for which one stays signed in.
LASTS = 12 * 3600

#: Signs in a token at least.
SHORTEST = 16


def new_token() -> str:
    """A secret that nobody guesses."""
    return secrets.token_urlsafe(32)


def new_session() -> str:
    """A cookie of a visitor whom somebody else has let in."""
    return secrets.token_urlsafe(32)


def form_secret(session: str) -> str:
    """What a form of *session* carries, and no other site can know."""
    return _sign(session.encode(), "form")


def equal(mine: str, theirs: str) -> bool:
    """Whether they are the same, in a time that does not tell how far."""
    return hmac.compare_digest(mine.encode(), theirs.encode(errors="surrogateescape"))


class SignIn:
    """Sessions for whoever has *token*."""

    def __init__(self, token: str) -> None:
        if len(token) < SHORTEST:
            raise ConfigurationError(
                f"the token of the page needs {SHORTEST} signs or more: "
                'python -c "import secrets; print(secrets.token_urlsafe(32))" makes a good one'
            )
        self._token = token
        self._key = hashlib.sha256(b"celery_dlock.web " + token.encode()).digest()

    def open(self, token: str) -> str | None:
        """A session, if *token* is the right one."""
        if not equal(self._token, token):
            return None
        claim = f"{secrets.token_urlsafe(24)}.{int(time.time()) + LASTS}"
        return f"{claim}.{_sign(self._key, claim)}"

    def knows(self, session: str) -> bool:
        """Whether *session* was opened with this token, and has not ended."""
        claim, _, signature = session.rpartition(".")
        ends = claim.rpartition(".")[2]
        return equal(_sign(self._key, claim), signature) and time.time() < int(ends)


def _sign(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()
