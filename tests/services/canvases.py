"""Canvases with one member that may be contended, and what each of them comes to.

This is the table to read: for each canvas, by how its member ends, the value of the canvas and
the other tasks that run. ``failed`` is the error callback. Values tell how they came about:
``body(left,member)``; ``error`` is the member's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery import chain, chord, group


class End(StrEnum):
    """How the member ends."""

    RUNS = "runs"
    SKIPPED = "is skipped"
    SKIPPED_GO_ON = "is skipped, and its chain goes on"
    FAILS = "fails"


#: Makes a plain task of this label.
Step = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Canvas:
    """``make(member, step)``, and (value, others that run) by the member's end.

    An end that is missing never comes: Celery itself leaves such a canvas pending.
    """

    make: Callable[[Any, Step], Any]
    comes_to: Mapping[End, tuple[str, str]]


RUNS, SKIPPED, GO_ON, FAILS = End.RUNS, End.SKIPPED, End.SKIPPED_GO_ON, End.FAILS

CANVASES = {
    "task": Canvas(
        lambda m, s: m,
        {
            RUNS: ("member", ""),
            SKIPPED: ("skipped", ""),
            GO_ON: ("skipped", ""),
            FAILS: ("error", "failed"),
        },
    ),
    "link": Canvas(
        lambda m, s: m.set(link=[s("linked")]),
        {
            RUNS: ("member", "linked"),
            SKIPPED: ("skipped", ""),
            GO_ON: ("skipped", "linked"),
            FAILS: ("error", "failed"),
        },
    ),
    "chain": Canvas(
        lambda m, s: chain(s("before"), m, s("between"), s("after")),
        {
            RUNS: ("after(between(member(before)))", "after before between"),
            SKIPPED: ("skipped", "before"),
            GO_ON: ("after(between(skipped))", "after before between"),
            FAILS: ("error", "before failed"),
        },
    ),
    "group": Canvas(
        lambda m, s: group(s("left"), m, s("right")),
        {
            RUNS: ("[left, member, right]", "left right"),
            SKIPPED: ("[left, skipped, right]", "left right"),
            GO_ON: ("[left, skipped, right]", "left right"),
            FAILS: ("[left, error, right]", "failed left right"),
        },
    ),
    "chord header": Canvas(
        lambda m, s: chord([s("left"), m, s("right")], s("body")),
        {
            RUNS: ("body(left,member,right)", "body left right"),
            SKIPPED: ("body(left,skipped,right)", "body left right"),
            GO_ON: ("body(left,skipped,right)", "body left right"),
            FAILS: ("ChordError", "failed left right"),
        },
    ),
    "chord body": Canvas(
        lambda m, s: chord([s("left"), s("right")], m),
        {
            RUNS: ("member(left,right)", "left right"),
            SKIPPED: ("skipped", "left right"),
            GO_ON: ("skipped", "left right"),
            FAILS: ("error", "failed left right"),
        },
    ),
    "chain in a chord header": Canvas(
        lambda m, s: chord([s("left"), chain(s("before"), m, s("after"))], s("body")),
        {
            RUNS: ("body(left,after(member(before)))", "after before body left"),
            SKIPPED: ("body(left,skipped)", "before body left"),
            GO_ON: ("body(left,after(skipped))", "after before body left"),
            FAILS: ("ChordError", "before failed left"),
        },
    ),
    "chord in a chain": Canvas(
        lambda m, s: chain(s("before"), chord([m, s("right")], s("body")), s("after")),
        {
            RUNS: ("after(body(member(before),right(before)))", "after before body right"),
            SKIPPED: ("after(body(skipped,right(before)))", "after before body right"),
            GO_ON: ("after(body(skipped,right(before)))", "after before body right"),
            FAILS: ("ChordError", "before failed right"),
        },
    ),
    "group in a chain": Canvas(
        lambda m, s: chain(s("before"), group(m, s("right")), s("after")),
        {
            RUNS: ("after(member(before),right(before))", "after before right"),
            SKIPPED: ("after(skipped,right(before))", "after before right"),
            GO_ON: ("after(skipped,right(before))", "after before right"),
            FAILS: ("ChordError", "before failed right"),
        },
    ),
    "chord after it": Canvas(
        lambda m, s: chain(m, chord([s("left"), s("right")], s("body"))),
        {
            RUNS: ("body(left(member),right(member))", "body left right"),
            SKIPPED: ("skipped", ""),
            GO_ON: ("body(left(skipped),right(skipped))", "body left right"),
            FAILS: ("error", "failed"),
        },
    ),
    "group after it": Canvas(
        lambda m, s: chain(m, group(s("left"), s("right"))),
        {
            RUNS: ("[left(member), right(member)]", "left right"),
            SKIPPED: ("[skipped, skipped]", ""),
            GO_ON: ("[left(skipped), right(skipped)]", "left right"),
        },
    ),
    "chain of chords": Canvas(
        lambda m, s: chain(chord([s("left"), m], s("body")), chord([s("a"), s("b")], s("last"))),
        {
            RUNS: ("last(a(body(left,member)),b(body(left,member)))", "a b body last left"),
            SKIPPED: ("last(a(body(left,skipped)),b(body(left,skipped)))", "a b body last left"),
            GO_ON: ("last(a(body(left,skipped)),b(body(left,skipped)))", "a b body last left"),
            FAILS: ("ChordError", "failed left"),
        },
    ),
    "chord in a chord header": Canvas(
        lambda m, s: chord([chord([m, s("left")], s("inner")), s("right")], s("body")),
        {
            RUNS: ("body(inner(member,left),right)", "body inner left right"),
            SKIPPED: ("body(inner(skipped,left),right)", "body inner left right"),
            GO_ON: ("body(inner(skipped,left),right)", "body inner left right"),
        },
    ),
}
