"""Training with faults in small worlds: conservation and replica identity at every step."""

import pickle
from functools import partial

import numpy as np
import pytest
import worlds
from soak_plan import SHAPES, Plan, check_redistribution, check_steps
from unit.compressors import NumpyCompressor

from hvd_sparse.state import checkpoint_file as checkpoint
from hvd_sparse.state.redistribution import redistribute
from hvd_sparse.types import TensorSpec

SPECS = [TensorSpec(key, shape, "float32") for key, shape in SHAPES.items()]


def residuals_of(session):
    kept = worlds.residuals(session)
    return {spec.key: kept.get(spec.key, np.zeros(spec.numel, np.float32)) for spec in SPECS}


def gather(collective, value):
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = collective.allgather(np.array([data.size]), "sizes").wait(None)
    everything = collective.allgather(data, "values").wait(None)
    return [pickle.loads(part.tobytes()) for part in np.split(everything, np.cumsum(sizes)[:-1])]


def run_segment(collective, plan, configuration, steps, average, saved):
    compressor = NumpyCompressor(collective, configuration, SPECS, average)
    residuals = partial(residuals_of, compressor.session)
    rank, size = collective.rank, collective.world_size
    if saved:
        states = [checkpoint.from_bytes(state) for state in saved]
        compressor.load_state_dict(redistribute(states, size)[rank])
        kept = gather(collective, residuals())
        check_redistribution(states, kept, average=average)

    def reduce(step):
        return compressor.session.reduce(plan.gradients(step, rank, size), plan.scale(step))

    gathered = partial(gather, collective)
    check_steps(plan, steps, reduce, residuals, gathered, average=average)
    return checkpoint.to_bytes(compressor.state_dict())


def soak(seed, segments, each, selector, average, over):
    plan, saved, start = Plan(seed), [], 0
    options = {"schedule": plan.schedule(segments * each), "select_over": over}
    configuration = worlds.configure(selector, 0.1, check_replicas_every=10, **options)
    for size in plan.sizes(segments):
        steps = range(start, start + each)
        world = worlds.LocalWorld(size, 3600.0)
        saved = world.run(run_segment, plan, configuration, steps, average, saved)
        start += each
    return sum(bool(plan.spoiled(step, 4)) for step in range(start))


@pytest.mark.parametrize(
    ("selector", "average", "over"),
    [
        ("ldte_bs", True, "tensor"),
        ("topk", False, "tensor"),
        ("sidco", True, "tensor"),
        ("ldte_bs", False, "group"),
    ],
)
def test_nothing_is_lost_and_replicas_stay_equal_at_every_step(selector, average, over):
    assert soak(1, 6, 40, selector, average, over) > 5


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("selector", "average"), [("ldte_bs", True), ("topk", False)])
def test_so_it_is_over_20000_steps(selector, average):
    assert soak(2, 40, 500, selector, average, "tensor") > 500
