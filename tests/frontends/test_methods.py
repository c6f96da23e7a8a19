"""Every named method does the same through both frontends as in the numpy core (invariants 24 and
36)."""

from __future__ import annotations

import pytest
from frontends._common import launched, measured
from frontends._method_cases import BUILT, METHODS, SHAPES, STEPS

from hvd_sparse.methods import METHODS as NAMED


@pytest.fixture(scope="module", params=["torch", "tensorflow"])
def outcome(request):
    return launched("frontends/methods.py", 2, "mpi", request.param)


def test_every_named_method_has_a_case():
    assert set(METHODS) == set(NAMED)


@pytest.mark.parametrize("method", [*METHODS, *BUILT])
def test_a_method_gives_the_bits_of_the_core_on_every_rank(outcome, method):
    first, *others = measured(outcome, method)
    for result in (first, *others):
        assert result["differences"] == 0
        assert result["applied"] == first["applied"]
        assert result["sparse_steps"] == STEPS * len(SHAPES)
        assert result["entries_sent"] > 0
