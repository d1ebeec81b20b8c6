"""Makes etcd3 0.12.0, the newest on PyPI, importable beside a protobuf of today.

Its generated modules build each descriptor by a call that protobuf forbids since version 4. But
they also carry the serialized files that the descriptors were made from, and from those protobuf's
own builder makes the same modules anew. The old ones are read, and never run.

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

#: In the order in which they import each other.
MODULES = ("kv_pb2", "auth_pb2", "rpc_pb2")

PACKAGE = "etcd3.etcdrpc"


def import_etcdrpc() -> Any:
    """The messages and stubs of etcd, from etcd3.

    Raises :exc:`ImportError` when etcd3, protobuf or grpc is not installed.
    """
    if PACKAGE not in sys.modules:
        files = {name: serialized for name in MODULES if (serialized := _serialized(name))}
        _register(files)
    return importlib.import_module(PACKAGE)


def _serialized(name: str) -> bytes | None:
    """The file that the generated module *name* was made from, if it is one of the old kind."""
    package = find_spec("etcd3")
    if package is None:
        raise ModuleNotFoundError("No module named 'etcd3'", name="etcd3")
    for folder in package.submodule_search_locations or ():
        source = Path(folder, "etcdrpc", f"{name}.py")
        if source.exists():
            for node in ast.walk(ast.parse(source.read_bytes())):
                if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
                    return _literal(node.value)
    return None


def _literal(value: ast.expr) -> bytes:
    """Of ``b"…"``, or of ``_b("…")``, which is how code for Python 2 and 3 writes it."""
    if isinstance(value, ast.Call):
        (value,) = value.args
    found = ast.literal_eval(value)
    return found if isinstance(found, bytes) else str(found).encode("latin-1")


def _register(files: dict[str, bytes]) -> None:
    """Put the modules where etcd3 will look for them."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.internal import builder

    pool: Any = DescriptorPool()
    made: Any = builder  # typeshed knows its names, and not what they take
    for name, serialized in files.items():
        module = ModuleType(f"{PACKAGE}.{name}")
        descriptor = pool.AddSerializedFile(serialized)
        vars(module)["DESCRIPTOR"] = descriptor
        made.BuildMessageAndEnumDescriptors(descriptor, vars(module))
        made.BuildTopDescriptorsAndMessages(descriptor, module.__name__, vars(module))
        sys.modules[module.__name__] = module
