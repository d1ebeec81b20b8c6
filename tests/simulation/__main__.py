"""``python -m tests.simulation``: schedules of the shipped worker, as many as you like.

``--seed N`` plays one again and tells every step of it.
"""

import os
import sys
from importlib import import_module

from tests.simulation import virtual

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # a set has one order, in every run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    virtual.install()
    import_module("tests.simulation.coroutines").install()
    sys.exit(import_module("tests.simulation.command").main())
