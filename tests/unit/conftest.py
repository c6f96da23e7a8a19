"""What several files of unit tests start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from compressors import making


@pytest.fixture(scope="module")
def world_of_one() -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def make() -> Iterator[Any]:
    with making() as make_one:
        yield make_one
