"""Settings that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Modules of checks get pytest's explanations of failed asserts, as test files do.
pytest.register_assert_rewrite(
    "conformance.codec_checks",
    "conformance.exchange_checks",
    "conformance.kernel_checks",
    "conformance.memory_checks",
    "conformance.selector_checks",
)

settings.register_profile("suite", derandomize=True, max_examples=50, deadline=None, database=None)
settings.load_profile("suite")
