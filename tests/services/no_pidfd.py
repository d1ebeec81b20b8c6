"""Imported by a worker: a system whose kernel does not tell when a process is gone."""

import os

if hasattr(os, "pidfd_open"):
    del os.pidfd_open
