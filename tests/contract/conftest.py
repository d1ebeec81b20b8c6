"""The contract is in modules that are no tests themselves: their asserts say what was compared."""

import pytest

pytest.register_assert_rewrite(
    "tests.contract.key", "tests.contract.rules", "tests.contract.storage"
)
