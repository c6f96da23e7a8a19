"""Selectors keep their promises on real gradients, of models that train with error feedback."""

import cases
import pytest
from conformance import selector_checks
from recorded import recorded

from hvd_sparse.registry import SELECTORS

VECTORS = [vector for step in (1, 300) for vector in recorded(step=step)]
selectors = pytest.mark.parametrize("case", cases.SELECTORS, ids=str)


@selectors
def test_selectors_keep_their_promises_on_real_gradients(case):
    for vector in VECTORS:
        selector_checks.check_found(case.create(SELECTORS, density=vector.density), vector.values)
