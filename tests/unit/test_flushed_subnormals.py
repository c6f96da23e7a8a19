"""Frames are read alike, to the bit, by threads that flush subnormal numbers to zero."""

from __future__ import annotations

import pytest
from programs import run_python

pytest.importorskip("torch", reason="it sets how a thread treats subnormal numbers")

SCRIPT = """
import cases
import numpy as np
import torch
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection

codecs = [case.create(CODECS) for case in cases.CODECS]
indices = np.arange(0, 1_000, 5, dtype=np.uint32)
noise = np.random.default_rng(0).normal(size=indices.size)
scales = {"float32": (1.0, 1e-5, 1e-39), "float64": (1.0, 1e-39, 1e-310)}
selections = [
    Selection(indices, (noise * scale).astype(dtype), 1_000)
    for dtype in scales
    for scale in scales[dtype]
]
frames = [[codec.encode(selection) for selection in selections] for codec in codecs]
values = [
    [codec.decode(frame).values.tobytes() for frame in those]
    for codec, those in zip(codecs, frames)
]

assert torch.set_flush_denormal(True)
assert not (np.full(8, 1e-40, np.float32) > 0).any(), "subnormal numbers are not flushed"
for codec, those, meant in zip(codecs, frames, values):
    assert [codec.decode(frame).values.tobytes() for frame in those] == meant, codec
    if codec.is_exact:
        again = [codec.encode(selection).tobytes() for selection in selections]
        assert again == [frame.tobytes() for frame in those], codec
    for selection in selections:
        codec.decode(codec.encode(selection))
"""


def test_codecs_do_not_depend_on_how_a_thread_treats_subnormal_numbers():
    run = run_python("-c", SCRIPT)
    assert run.returncode == 0, run.stderr


HANDSHAKE = """
import numpy as np
import torch
import worlds
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.step.session import Session
from hvd_sparse.errors import RankMismatch

SPECS = worlds.tensors((4, 3))


def script(collective, flushing):
    # of this thread, which is this rank
    assert collective.rank not in flushing or torch.set_flush_denormal(True)
    session = Session(worlds.configure(), SPECS, collective)
    return session.reduce(worlds.normals(SPECS, collective.rank))["t0"].tobytes()


for flushing in ((), (0, 1, 2)):
    assert len(set(worlds.run(3, lambda collective: script(collective, flushing)))) == 1
for error in LocalWorld(3, worlds.TIMEOUT_S).run_all(script, (1,)):
    assert isinstance(error, RankMismatch), error
    assert 'rank 1 has "subnormal numbers": "taken for zero"' in str(error), error
"""


def test_a_rank_that_alone_takes_subnormal_numbers_for_zero_is_named_before_the_first_step():
    """Its sums of the same messages would be others, and the replicas with them."""
    run = run_python("-c", HANDSHAKE)
    assert run.returncode == 0, run.stderr
