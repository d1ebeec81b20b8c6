"""Which pages of a queue are known to be empty, so that nobody reads them in vain.

While a message at the head stays, that of a task which runs for hours, thousands may come and go
behind it. They leave a gap of pages, and whoever waits now is on the far side of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: Runs of pages, each from its first to before its end, in order and apart from each other.
Gaps = tuple[tuple[int, int], ...]

#: Behind so many there are more entries than an operation reads.
MOST = 64


def between(first: int, last: int, gaps: Gaps) -> Iterator[int]:
    """The pages from *first* to *last*, without *gaps*."""
    at = first
    for start, end in gaps:
        yield from range(at, min(start, last + 1))
        at = max(at, end)
    yield from range(at, last + 1)


def changed(gaps: Gaps, emptied: Iterable[int], filled: Iterable[int], first: int) -> Gaps:
    """*gaps* from the page *first* on, after some pages were emptied and others filled."""
    runs = [(max(start, first), end) for start, end in gaps if end > first]
    runs += [(page, page + 1) for page in emptied if page >= first]
    for page in filled:
        runs = [part for run in runs for part in _without(run, page)]
    joined: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return tuple(joined[:MOST])


def _without(run: tuple[int, int], page: int) -> list[tuple[int, int]]:
    start, end = run
    if not start <= page < end:
        return [run]
    return [part for part in ((start, page), (page + 1, end)) if part[0] < part[1]]
