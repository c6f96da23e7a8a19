"""The gamma tail against scipy."""

from __future__ import annotations

import pytest

from hvd_sparse.selectors.sidco import tail_quantile, upper_tail

special = pytest.importorskip("scipy.special", reason="scipy is what it is compared with")


@pytest.mark.parametrize("shape", [0.05, 0.3, 0.5, 1.0, 1.7, 5.0, 40.0])
@pytest.mark.parametrize("x", [0.0, 1e-6, 0.1, 0.9, 1.0, 2.0, 6.0, 30.0, 100.0])
def test_the_upper_tail_is_scipys(shape, x):
    assert upper_tail(shape, x) == pytest.approx(special.gammaincc(shape, x), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0, 1.7, 5.0])
@pytest.mark.parametrize("probability", [0.25, 0.1, 1e-2, 1e-4])
def test_the_quantile_is_scipys(shape, probability):
    assert tail_quantile(shape, probability) == pytest.approx(
        special.gammainccinv(shape, probability), rel=1e-6
    )
