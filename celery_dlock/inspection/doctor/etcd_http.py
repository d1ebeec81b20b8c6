"""What a member of an etcd tells over HTTP on the port of its clients: figures, and the time."""

from __future__ import annotations

import re
import ssl
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from celery_dlock.backends.etcd_address import Address
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.clock import Offset, measured

#: Seconds for an answer.
PATIENCE = 5.0

_SYNCED = re.compile(r"^etcd_disk_wal_fsync_duration_seconds_count (\S+)$", re.MULTILINE)
_WRITTEN = re.compile(r"^etcd_disk_wal_write_bytes_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Told:
    """How many bytes of its log it has written, how often it waited for the disk, and its clock.

    The clock is told in whole seconds.
    """

    written: float
    synced: float
    offset: Offset


def ask(address: Address, case: Case, endpoint: str) -> Told:
    """Ask the member at *endpoint*. Raises :exc:`OSError`, and LookupError for other figures."""
    context = _context(case) if address.tls else None
    url = f"{'https' if address.tls else 'http'}://{endpoint}/metrics"
    figures = ""

    def date() -> float:
        nonlocal figures
        with urllib.request.urlopen(url, timeout=PATIENCE, context=context) as answer:
            figures = answer.read().decode()
            return parsedate_to_datetime(answer.headers["Date"]).timestamp()

    offset = measured(case.clock, date, unit=1.0)
    return Told(_figure(_WRITTEN, figures), _figure(_SYNCED, figures), offset)


def _context(case: Case) -> ssl.SSLContext:
    """The files of the driver's options; they were read before, when the address was."""
    given = case.settings.backend_options
    context = ssl.create_default_context(cafile=given.get("ca_cert"))
    if given.get("cert_cert"):
        context.load_cert_chain(given["cert_cert"], given["cert_key"])
    return context


def _figure(pattern: re.Pattern[str], figures: str) -> float:
    found = pattern.search(figures)
    if found is None:
        raise LookupError("its figures are not those of an etcd")
    return float(found[1])
