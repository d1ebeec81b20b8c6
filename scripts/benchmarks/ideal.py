"""What tasks of a key have to wait for each other, whoever lets them: schedules on paper.

Each is made of what plain tasks took, which know no order. So what is left between such a schedule
and what was measured is the price of the lock.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence

from scripts.benchmarks.notes import Span


def rate_in_order(keys: Sequence[str], slots: int, seconds: float) -> float:
    """Tasks a second, each of so many *seconds* in its slot, one at a time of each key.

    All are there from the beginning, and a free slot takes the first one whose key is free: what
    nobody can do whose messages lie in a broker.
    """
    waiting, running, now = list(keys), list[tuple[float, str]](), 0.0
    while waiting or running:
        busy = {key for _, key in running}
        free = next((n for n, key in enumerate(waiting) if key not in busy), None)
        if free is not None and len(running) < slots:
            heapq.heappush(running, (now + seconds, waiting.pop(free)))
        else:
            now, _ = heapq.heappop(running)
    return len(keys) / now


def rate_by_turns(
    keys: Sequence[str], slots: int, seconds: float, prefetched: int, *, at_publish: bool
) -> float:
    """The same by our own rules, where nothing but the bodies takes time.

    A message whose key is busy is parked as it is fetched; *at_publish* each is, and the first of
    its key is woken at once. The next of a key is woken when the one before it ends. Woken messages
    have a queue of their own, and the two queues are served by turns, as they are fetched and as
    they are started.
    """
    firsts = dict.fromkeys(keys if at_publish else ())
    parked = Counter(keys if at_publish else ()) - Counter(firsts.keys())
    home, woken = deque(() if at_publish else keys), deque(firsts)
    lines = (deque[str](), deque[str]())  # what is prefetched: woken, and not
    fetch_woken = start_woken = True
    busy, running, now = set[str](), list[tuple[float, str]](), 0.0

    def fetch() -> None:
        nonlocal fetch_woken
        while sum(map(len, lines)) + len(running) < prefetched and (home or woken):
            fetch_woken = bool(woken) and (fetch_woken or not home)
            key = (woken if fetch_woken else home).popleft()
            if not fetch_woken and key in busy:
                parked[key] += 1
            else:
                lines[0 if fetch_woken else 1].append(key)
                busy.add(key)
            fetch_woken = not fetch_woken

    while True:
        fetch()
        while len(running) < slots and any(lines):
            start_woken = bool(lines[0]) and (start_woken or not lines[1])
            heapq.heappush(running, (now + seconds, lines[0 if start_woken else 1].popleft()))
            start_woken = not start_woken
        if not running:
            return len(keys) / now
        now, key = heapq.heappop(running)
        if parked[key]:
            parked[key] -= 1
            woken.append(key)
        else:
            busy.remove(key)


def one_at_a_time(plain: Sequence[Span]) -> list[float]:
    """Seconds from published to ended of each, if it had waited for the one before it of its key.

    *plain* are tasks that did not. The next of a key begins when the one before it ends, or when it
    did in fact, whichever is later.
    """
    free: dict[str, float] = {}
    took: list[float] = []
    for span in sorted(plain, key=lambda span: span.sent):
        free[span.key] = max(span.began, free.get(span.key, 0.0)) + span.ended - span.began
        took.append(free[span.key] - span.sent)
    return took
