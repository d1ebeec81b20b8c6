"""``make measure``: the calls of a task, the lines of a feature, the size of it all.

``python -m scripts.measure`` shows the walks and the size of the working directory, ``walks`` or
``size`` only one of them, and ``lines A..B`` or ``lines COMMIT...`` the lines of commits by layer.
``page`` writes the sizes of the packages into the page of the architecture.
To measure another checkout, run it there with this one in ``PYTHONPATH``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from scripts.measure import layers, page, size


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.measure")
    parts = parser.add_subparsers(dest="part")
    parts.add_parser("walks", help="calls, files and changes of file of a task over Redis")
    parts.add_parser("size", help="files, lines and statements of the repository")
    parts.add_parser("page", help="write the sizes into the page of the architecture")
    lines = parts.add_parser("lines", help="lines of commits by layer")
    lines.add_argument("commits", nargs="+", help="commits, or a range A..B")
    chosen = parser.parse_args(arguments)
    console = Console()
    if chosen.part == "lines":
        console.print(layers.table_of(layers.changed(Path.cwd(), chosen.commits)))
    if chosen.part == "page":
        text = page.PAGE.read_text(encoding="utf-8")
        page.PAGE.write_text(page.renewed(text, Path("celery_dlock")), encoding="utf-8")
    if chosen.part in {None, "walks"}:
        from scripts.measure import walks  # needs Redis and Celery, which the others do not

        console.print(walks.table_of(walks.walk_all()))
    if chosen.part in {None, "size"}:
        console.print(size.table_of(size.sizes(Path.cwd())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
