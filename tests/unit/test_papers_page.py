"""The page of the papers' figures: what it measures, on vectors whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the bench trains with it")

from benchmarks.papers import figures
from benchmarks.papers.outcomes import kept_back
from benchmarks.papers.rows import ROWS


def test_residuals_that_are_alike_have_cosine_one_and_opposite_ones_minus_one():
    vector = np.arange(1.0, 5.0, dtype=np.float32)
    assert figures.cosine(np.stack([vector, 2 * vector])) == 1.0
    assert figures.cosine(np.stack([vector, -vector])) == -1.0


def test_resnets_gradient_by_dgcs_coding_is_what_its_paper_counts():
    """97.49 MiB to 0.352 MiB, 277 times; headers of the frames come on top."""
    told = figures.dgc_bytes()
    assert told["dense"] == 4 * 25_557_032
    assert told["packed"] == pytest.approx(369_498, rel=0.02)


def test_a_bound_that_fails_is_counted():
    holds = {"contraction": 0.8, "contraction_of_bells": 0.98}
    fails = {"contraction": 0.99, "contraction_of_bells": 0.98}
    assert kept_back({"contraction": [holds, fails]}).startswith("holds in 1 of 2")


def test_every_row_says_how_it_is_made():
    assert all(row.what and row.printed and row.made_by for row in ROWS)
