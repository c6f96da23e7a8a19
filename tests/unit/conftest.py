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
def make():
    with making() as make_one:
        yield make_one
