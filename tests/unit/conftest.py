"""Fixtures that several files of unit tests share."""

import pytest
from compressors import making


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
    with making() as make_one:
        yield make_one
