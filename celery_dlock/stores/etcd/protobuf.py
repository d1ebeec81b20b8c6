"""The messages and stubs of etcd, from a package that has them, beside a protobuf of today.

etcd3 0.12.0 is its newest, of 2020. Its generated modules build each descriptor by a call that
protobuf forbids since version 4. But they also carry the serialized files that the descriptors were
made from, and from those protobuf's own builder makes the same modules anew. The old ones are read,
and never run.

Where etcd3 is not to be had, those of etcd-sdk-python serve, which grew out of it and is imported
as ``pyetcd``. They are treated alike, for they would refuse a protobuf that is much newer.

The descriptors go into a pool of their own: ``rpc.proto`` and ``kv.proto`` are names that others
use, too, and the pool that all share takes each of them once.
"""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

#: The first one that is installed is taken.
PACKAGES = ("etcd3", "pyetcd")

#: In the order in which they import each other.
MODULES = ("kv_pb2", "auth_pb2", "rpc_pb2")


def import_etcdrpc() -> Any:
    """The messages and stubs of etcd.

    Raises :exc:`ImportError` when protobuf, grpc, or each of :data:`PACKAGES` is not installed.
    """
    for package in PACKAGES:
        spec, modules = find_spec(package), f"{package}.etcdrpc"
        for folder in spec.submodule_search_locations or () if spec else ():
            messages = Path(folder, "etcdrpc")
            if messages.is_dir():  # there are others that are imported as etcd3
                if modules not in sys.modules:
                    _register(modules, messages)
                return importlib.import_module(modules)
    missing = "neither etcd3 nor, in its place, etcd-sdk-python is installed"
    raise ModuleNotFoundError(missing, name=PACKAGES[0])


def _register(modules: str, folder: Path) -> None:
    """Put those that lie in *folder* where their package will look for them."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.internal import builder

    pool: Any = DescriptorPool()
    made: Any = builder  # typeshed knows its names, and not what they take
    for name in MODULES:
        module = ModuleType(f"{modules}.{name}")
        descriptor = pool.AddSerializedFile(_serialized(folder / f"{name}.py"))
        vars(module)["DESCRIPTOR"] = descriptor
        made.BuildMessageAndEnumDescriptors(descriptor, vars(module))
        made.BuildTopDescriptorsAndMessages(descriptor, module.__name__, vars(module))
        sys.modules[module.__name__] = module


def _serialized(source: Path) -> bytes:
    """The file that a generated module was made from: ``serialized_pb=…`` in those of old, and
    ``AddSerializedFile(…)`` in those of today.
    """
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            return _literal(node.value)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "AddSerializedFile":
            return _literal(node.args[0])
    raise ImportError(f"{source} carries no serialized file")


def _literal(value: ast.expr) -> bytes:
    """Of ``b"…"``, or of ``_b("…")``, which is how code for Python 2 and 3 writes it."""
    if isinstance(value, ast.Call):
        (value,) = value.args
    literal = ast.literal_eval(value)
    return literal if isinstance(literal, bytes) else str(literal).encode("latin-1")
