"""Fixtures that several files of unit tests share."""

import pytest
import worlds
from compressors import SPECS, NumpyCompressor


@pytest.fixture(scope="module")
def world_of_one():
    pytest.importorskip("torch")
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_rank(world_of_one, monkeypatch):
    """Close all compressors of DDP that a test makes, after it."""
    from hvd_sparse.ddp import DdpCompressor

    made, begin = [], DdpCompressor.__init__

    def noted(compressor, *given):
        begin(compressor, *given)
        made.append(compressor)

    monkeypatch.setattr(DdpCompressor, "__init__", noted)
    yield
    for compressor in made:
        compressor.close()


@pytest.fixture
def make():
    """Return a function that makes a compressor, which is closed after the test."""
    made = []

    def make_one(configuration=None, specs=SPECS):
        configuration = configuration or worlds.configure("ldte_bs", 0.1)
        (compressor,) = worlds.run(1, lambda c: NumpyCompressor(c, configuration, specs))
        made.append(compressor)
        return compressor

    yield make_one
    for compressor in made:
        compressor.close()
