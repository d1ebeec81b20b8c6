"""What :class:`~celery_dlock.stores.consensus.rows.Rows` promises, as tests for each such store.

Subclass it, name the subclass ``Test…`` and give it two fixtures: ``rows`` and ``others``, two
instances with sessions of their own on one prefix that no other test has.
"""

from __future__ import annotations

from tests.contract.rows_commits import Commits
from tests.contract.rows_crowd import Crowd
from tests.contract.rows_lives import Lives
from tests.contract.rows_reading import Reading


class RowsContract(Reading, Commits, Crowd, Lives):
    """All of it."""
