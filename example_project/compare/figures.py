"""What came of one side, and whether it is right."""

from __future__ import annotations

from dataclasses import dataclass

#: The modules of the shop that have the tasks, and what a side with them is called.
SIDES = {"careless": "no lock", "unfenced": "lock only", "tasks": "lock and fence"}

#: Where a side leaves its figures, in its folder.
FILE = "figures.json"


@dataclass(frozen=True, slots=True)
class Figures:
    """Counted in the shop's database and in the provider's books; money in cents."""

    there: int
    sold: int
    left: int
    charged_twice: int
    owed: int
    charged: int
    reports: int
    refused: int
    alerts: int

    @property
    def wrong(self) -> set[str]:
        """What was damaged."""
        damage = {
            "stock": self.sold + self.left != self.there,
            "money": self.charged_twice > 0 or self.charged != self.owed,
            "report": self.reports != 1,
        }
        return {name for name, damaged in damage.items() if damaged}
