"""``Compression.nothing`` gives Horovod one number a tensor, and the rank its own gradient."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("horovod.torch", reason="the package imports it", exc_type=ImportError)
import torch

from hvd_sparse.errors import InvalidOption
from hvd_sparse.torch import Compression


def test_one_number_travels_and_the_gradient_comes_back_as_it_is(caplog):
    with caplog.at_level(logging.WARNING, "hvd_sparse"):
        compression = Compression.nothing()
    assert "every rank trains alone" in caplog.text
    gradient = torch.randn(30, 40, dtype=torch.float64)
    sent, context = compression.compress(gradient)
    assert sent.numel() == 1
    assert compression.decompress(sent * 2, context) is gradient


def test_a_sparse_gradient_that_horovod_gathered_is_handed_on():
    gathered = torch.eye(3).to_sparse()
    assert Compression.nothing().decompress(gathered, None) is gathered


def test_given_without_a_call_it_says_how_to_call_it():
    with pytest.raises(InvalidOption, match=r"Compression\.nothing\(params"):
        Compression.nothing.compress(torch.ones(2))
