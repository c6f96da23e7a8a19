"""Checks the engine triton in Triton's interpreter. The programs of every launch run in a new
random order.

``triton_worker.py TASK [MUTANT]``, where TASK is ``passes``, ``assemble``, ``default`` or
``transfers``; or ``waits``, for which launches do nothing, on the pretend device.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is there
import contextlib
import json
import sys

import numpy as np
import torch
from conformance.changes import instead, text
from conformance.fused_checks import sums
from conformance.hostile import entry_bits
from conformance.kernel_checks import thresholds, vectors
from devices import pretend
from devices.forbidden import Watch
from devices.interpreter import Transfers, change_the_language_once
from distributions import draw
from triton.runtime.interpreter import interpreter_builder as builder

from hvd_sparse.kernels import reference
from hvd_sparse.kernels import triton as engine
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.engines import resolve_engine_by_place
from hvd_sparse.kernels.torch.passes import Pass
from hvd_sparse.kernels.torch.vector import DeviceVector, tensor_of
from hvd_sparse.kernels.triton import TritonKernels
from hvd_sparse.types import Selection

rng = np.random.default_rng(11)


@contextlib.contextmanager
def shuffled():
    """While the block runs, run the programs of every launch in a new random order."""
    set_dim, set_index = builder.set_grid_dim, builder.set_grid_idx
    order = []

    def new_launch(x, y, z):
        order[:] = [rng.permutation(x)]
        set_dim(x, y, z)

    builder.set_grid_dim = new_launch
    builder.set_grid_idx = lambda x, y, z: set_index(int(order[0][x]), y, z)
    yield
    builder.set_grid_dim, builder.set_grid_idx = set_dim, set_index


# -- what is asked --------------------------------------------------------------------------------


def members(dtype):
    for number, x in enumerate(vectors(dtype)[:: 3 if dtype == "float32" else 12]):
        if not x.size:
            continue
        residual, total, _ = sums(x)
        cuts = [cut for cut in thresholds(total) if not cut <= 0]
        for cut in cuts[number % 3 :: 3]:
            reach = reference.take_at_least(np.where(np.isfinite(total), total, 0), cut).count
            for room in {reach, max(0, reach - 1)}:
                yield x, residual, Aim(cut, room)


def check_passes():
    """Check passes that take entries, passes that only compute moments beside one that takes
    entries, each as one bucket of all vectors, and one large tensor."""
    kernels = engine.TritonKernels(reference, block=64)
    for dtype in ("float32", "float64"):
        takes = list(members(dtype))
        looks = [(x, sums(x)[0], None) for x in vectors(dtype) if x.size]
        for given in (takes, [*looks, takes[0]]):
            ours = [(x, old.copy(), aim) for x, old, aim in given]
            found = in_one(kernels, [(x, out, out, aim) for x, out, aim in ours])
            for (x, old, aim), (_, out, _), answer in zip(given, ours, found):
                check_beside_the_reference(x, old, out, aim, answer)
    x, old = (draw(name, 100_003, "float32") for name in ("laplace", "normal"))
    x[rng.integers(x.size, size=9)] = [np.nan, np.inf, -np.inf] * 3
    alone = engine.TritonKernels(reference, block=4096)
    for aim in (Aim(9.0, 2000), Aim(4.0, 500)):
        out = np.full_like(x, 9)
        check_beside_the_reference(x, old, out, aim, alone.accumulate_and_take(x, old, out, aim))


def in_one(kernels, given):
    answers = kernels.begin([Pass(*map(tensor_of, vectors), aim) for *vectors, aim in given])
    return answers.read(answers.words.numpy())


def check_beside_the_reference(x, old, out, aim, answer):
    expected_out = np.empty_like(old)
    if aim is None:
        expected = reference.accumulate(x, old, expected_out)
    else:
        expected = reference.accumulate_and_take(x, old, expected_out, aim)
    assert out.tobytes() == expected_out.tobytes(), "what stays is not all that was not taken"
    if aim is None:
        said, told = ((m.abs_max, m.nonzeros, m.numel) for m in (answer, expected))
        assert np.array_equal(said, told, equal_nan=True), "the moments are others"
        pair = [answer.abs_sum, expected.abs_sum]
        assert np.allclose(*pair, rtol=1e-12, equal_nan=True), "the moments are others"
    else:
        assert answer.nonfinite == expected.nonfinite
        assert entry_bits(answer.taken) == entry_bits(expected.taken)


def check_assemble():
    """Check sums of overlapping lists for several tensors at once. The same launch returns surplus
    entries to the residual."""
    kernels = engine.TritonKernels(reference, block=256)
    for dtype in ("float32", "float64"):
        ours, expected = [], []
        for numel, factor in ((3001, 1.0), (1024, 0.3), (37, 0.3)):
            x = draw("laplace", numel, dtype)
            parts = [reference.take_at_least(np.roll(x, shift), 1.0 + shift) for shift in range(3)]
            parts.insert(1, reference.take_at_least(x, 1e30))  # a rank that sends nothing
            for count in (len(parts), 3, 1):
                theirs = np.empty_like(x)
                reference.assemble(theirs, parts[:count], factor)
                ours.append((np.full_like(x, 7), parts[:count], factor))
                expected.append(theirs)
        nothing = np.full(70, 7, dtype)
        left = [draw("laplace", numel, dtype) for numel in (5000, 40)]
        surplus = [reference.take_at_least(x, 0.1) for x in left]
        cleared = [x.copy() for x in left]
        for x, entries in zip(cleared, surplus):
            x[entries.indices] = 0.0
        kernels.assemble_together([*ours, (nothing, [], 1.0)], list(zip(cleared, surplus)))
        assert min(each.count for each in surplus) > 20
        for x, expected_x in zip(cleared, left):
            assert x.tobytes() == expected_x.tobytes(), "what is surplus did not go back"
        for (out, _, _), theirs in zip(ours, expected):
            assert out.tobytes() == theirs.tobytes(), "the sum has other bits"
        assert not nothing.any(), "the sum has other bits"


def check_default():
    for wanted, given in ((True, None), (True, "triton"), (False, "torch")):
        kernels = resolve_engine_by_place(given)
        assert (type(kernels._device) is TritonKernels) is wanted, given


def count_transfers():
    """Return the moved bytes in units of the tensors' size."""
    numel, block = 1 << 16, 4096
    x = draw("laplace", numel, "float32")
    cut = float(np.sort(np.abs(x))[-numel // 1000])
    kernels = engine.TritonKernels(reference, block=block)
    gradient, results = torch_of(x), [torch_of(x) for _ in range(3)]
    bucket = [(gradient, out, out, Aim(cut, numel // 100)) for out in map(torch_of, 3 * [0 * x])]
    with Transfers() as choosing:
        taken = in_one(kernels, bucket)
    with Transfers() as adding:
        kernels.assemble_together(
            [(out, [each.taken for each in taken[:2]], 1.0) for out in results]
        )
    return {
        "select": choosing.bytes_moved / (3 * x.nbytes),
        "assemble": adding.bytes_moved / (3 * x.nbytes),
    }


def torch_of(x):
    return DeviceVector(torch.from_numpy(x.copy()))


# -- launches that do nothing ---------------------------------------------------------------------


class Launches:
    """Stands for the device code: stores the names of the launches and does nothing."""

    def __init__(self, device):
        self.names = []
        self._device = device

    def __getattr__(self, name):
        launches = self

        class Grid(dict):
            def __missing__(self, programs):
                return launches.launch(name)

        return Grid()

    def launch(self, name):
        def launched(*values, **_):
            tensors = [each for each in values if isinstance(each, torch.Tensor)]
            assert tensors and all(each.device == self._device for each in tensors), name
            self.names.append(name)

        return launched


def check_waits():
    """Check that no launch waits for the device, and none reads it on the host."""
    device, numel = pretend.load(), 1000
    own = engine.device_code = Launches(device)
    engine.on = lambda _: contextlib.nullcontext()
    kernels = engine.TritonKernels(reference, block=256)

    def seen(work):
        own.names, before = [], pretend.waits()
        with Watch() as watch:
            work()
        return pretend.waits() - before, watch.found, own.names

    def vector(dtype=torch.float32):
        return torch.zeros(numel, dtype=dtype, device=device)

    for dtype in (torch.float32, torch.float64):
        aims = Aim(1.0, 50), None
        passes = [Pass(*(vector(dtype) for _ in range(3)), aim) for aim in aims]
        for bucket in (passes[:1], passes[1:], passes):
            found = seen(lambda bucket=bucket: kernels.begin(bucket))
            assert found == (0, [], ["take_blocks", "add_up_counts", "order_taken"]), found
    some = np.arange(0, numel, 9, dtype=np.uint32)
    part = Selection(some, np.ones(some.size, np.float32), numel)
    sums = [(DeviceVector(vector()), [part, part], 0.5) for _ in range(2)]
    surplus = [(DeviceVector(vector()), part)]
    found = seen(lambda: kernels.assemble_together(sums, surplus))
    assert found == (0, [], ["assemble_blocks"]), found

    def planted():
        kernels.begin(passes[:1])
        vector().sum().item()

    assert seen(planted)[:2] == (1, ["_local_scalar_dense"]), "no wait is ever seen"


# -- mutants --------------------------------------------------------------------------------------


MUTANTS = {
    "the order of programs": (
        engine, "take",
        text(
            "device_code.order_taken[(programs,)](",
            "(lambda *_, **__: [ordered_places.copy_(places), ordered_values.copy_(values)])(",
        ),
    ),
    "the moments": (engine, "take", text("HAS_MOMENTS=looks, CHUNK", "HAS_MOMENTS=False, CHUNK")),
    "another order of ranks": (
        engine, "assemble",
        text("outs =", "sums = [s._replace(parts=s.parts[::-1]) for s in sums]\n    outs ="),
    ),
    "a tensor's surplus": (engine, "assemble", text("(surplus, numpy", "(surplus[:1], numpy")),
    "a list longer than the aim allows": (
        Pass, "room", instead(property(lambda one: one.out.numel()))
    ),
}  # fmt: skip
TASKS = {
    "passes": check_passes,
    "default": check_default,
    "assemble": check_assemble,
    "transfers": count_transfers,
    "waits": check_waits,
}


def main(task, *mutants):
    torch.set_num_threads(1)
    change_the_language_once()
    for owner, name, change in map(MUTANTS.get, mutants):
        setattr(owner, name, change(getattr(owner, name)))
    with shuffled(), np.errstate(all="ignore"):
        print(json.dumps(TASKS[task]()))


if __name__ == "__main__":
    main(*sys.argv[1:])
