"""Compiled kernels: a bucket's rows get the bits of each tensor's turn, on any processor."""

from functools import partial
from unittest import mock

import numpy as np
import pytest
import worlds
from conformance.fuzzing import repaired_frame
from programs import run_python

from hvd_sparse.codecs.index_value import IndexValue
from hvd_sparse.codecs.sign_mean import SignMean
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.kernels.rows import ARRIVED, FRAME, PLAIN, SIGNS, address
from hvd_sparse.step.session import Session
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import frame_head

pytest.importorskip("numba")

from hvd_sparse.kernels import numba
from hvd_sparse.kernels.numba import CompiledKernels, lists

STEPS, SPOILT = 14, 9
SHAPES = (40, 50), (300,), (7, 3), (130, 9), (1,)
LDTE_BS, TOPK = {"id": "ldte_bs", "density": 0.05}, {"id": "topk", "density": 0.05}
FEEDBACK = {"id": "momentum_feedback", "momentum": 0.99}
CORRECTION, ADAM = {"id": "momentum_correction"}, {"id": "adam_correction"}
HALF = {"id": "error_feedback", "residual": "bfloat16"}
BY_SIGN = {"selector": TOPK, "codec": "sign_mean"}
CONFIGURATIONS = {
    "ldte_bs": {"selector": LDTE_BS},
    "a narrow band": {"selector": {**LDTE_BS, "tolerance": (0.95, 1.05)}},
    "topk": {"selector": TOPK},
    "without rollback": {"selector": LDTE_BS, "rollback": False},
    "momentum without a velocity": {"selector": TOPK, "memory": "momentum_feedback"},
    "weight decay": {"selector": TOPK, "memory": {**FEEDBACK, "weight_decay": 0.1}},
    "momentum in one buffer": {"selector": TOPK, "memory": FEEDBACK, "rollback": False},
    "momentum correction": {"selector": TOPK, "memory": CORRECTION},
    "a clipped norm": {"selector": TOPK, "memory": {**CORRECTION, "clip_norm": 0.5}},
    "Nesterov": {"selector": LDTE_BS, "memory": {**FEEDBACK, "nesterov": True}},
    "masked": {"selector": LDTE_BS, "memory": {**CORRECTION, "momentum": 0.99, "nesterov": True}},
    "adam": {"selector": LDTE_BS, "memory": ADAM},
    "adam with weight decay": {"selector": TOPK, "memory": {**ADAM, "weight_decay": 0.1}},
    "muon": {"selector": TOPK, "memory": "muon_correction"},
    "signs": BY_SIGN,
    "signs of many": {**BY_SIGN, "selector": {**TOPK, "density": 0.4}},
    "signs of few": {**BY_SIGN, "selector": {**TOPK, "density": 0.002}},
    "signs without rollback": {**BY_SIGN, "rollback": False},
    "signs in 16 bits": {**BY_SIGN, "memory": HALF},
    "signs and momentum": {**BY_SIGN, "selector": LDTE_BS, "memory": CORRECTION},
    "another codec": {"selector": LDTE_BS, "codec": "block16"},
    "another selector": {"selector": {"id": "dgc_sampled", "density": 0.05}},
    "bounded messages": {"selector": LDTE_BS, "max_gathered_bytes": 400},
    "settled later": {"selector": TOPK, "exchange": "gtopk"},
    "as a group": {"selector": TOPK, "select_over": "group"},
}


def train(collective, configuration, dtype, *, kernels, scale, listener):
    specs = worlds.tensors(*SHAPES, dtype=dtype)
    buckets = [tuple(range(len(specs)))]
    session = Session(configuration, specs, collective, buckets=buckets, kernels=kernels)
    rng = np.random.default_rng(collective.rank)
    memory = configuration.memory
    if listener is not None:
        session.step.spans.add(listener)
    if memory.finishes and memory.id != "muon_correction":  # as a handed-over optimizer has it
        names = {"momentum", "nesterov", "weight_decay", "beta1", "beta2", "epsilon"}
        told = {name: getattr(memory, name) for name in names if hasattr(memory, name)}
        told["rate"] = 0.1
        parameters = [np.full(spec.numel, i + 0.5, dtype) for i, spec in enumerate(specs)]
        session.step.settings_of = lambda position: {**told, "parameter": parameters[position]}
    brought = []
    for step in range(STEPS):
        spread = 30.0 if step == SPOILT - 3 else 1.0  # far more entries reach the aim than before
        given = {
            spec.key: (rng.normal(size=spec.shape) ** 3 * spread).astype(dtype) for spec in specs
        }
        if step == SPOILT and collective.rank == 1:
            given["t0"][3] = np.nan
        kept = worlds.bits_of(given)
        brought.append(worlds.bits_of(session.reduce(given, scale)))
        assert kept == worlds.bits_of(given)
        brought.append(worlds.snapshot(session))
    states = session.step.transactions.settle_all()
    memos = {position: state.memo for position, state in states.items()}
    counted = session.step.stats.report(None)
    # Of a gradient with NaN a message has an empty frame or, where that is found late, none.
    for kind in ("payload_bytes", "bytes_sent", "bytes_received"):
        del counted[kind]
    return brought, memos, counted


def trained(configuration, make=CompiledKernels, dtype="float32", *, scale=1.0, listener=None):
    options = {"scale": scale, "listener": listener}
    return worlds.run(2, lambda c: train(c, configuration, dtype, kernels=make(), **options))


class NoRows(CompiledKernels):
    """The same kernels, but every tensor goes through the pipeline."""

    def __init__(self):
        super().__init__()
        self.most_in_row = 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=list(CONFIGURATIONS))
def test_rows_get_the_bits_of_the_walk(options, scale, dtype):
    if options.get("memory") == HALF:
        dtype = "float32"  # which such a residual asks for
    run = partial(trained, worlds.configure(**options), dtype=dtype, scale=scale)
    assert run(CompiledKernels) == run(NoRows)


def test_who_listens_to_spans_changes_no_call_and_hears_of_every_tensor():
    heard, calls = [], []
    for listener in (None, heard.append):
        made = [getattr(CompiledKernels, name) for name in ("send_rows", "sum_rows")]
        patches = [mock.patch.object(CompiledKernels, f.__name__, autospec=True) for f in made]
        with patches[0] as sends, patches[1] as sums:
            sends.side_effect, sums.side_effect = made
            trained(worlds.configure(TOPK), listener=listener)
        calls.append((sends.call_count, sums.call_count))
    assert calls[0] == calls[1] and min(calls[0]) >= STEPS
    for kind in ("select", "decode"):
        told = [span for span in heard if span.kind == kind]
        assert set().union(*(span.keys for span in told)) == {f"t{i}" for i in range(len(SHAPES))}
        longest = max(told, key=lambda span: len(span.keys))
        assert len(longest.keys) > 1
        whole_s = longest.end_s - longest.start_s
        assert sum(longest.seconds().values()) == pytest.approx(whole_s)


def test_tensors_on_the_host_are_rows_also_beside_tensors_on_a_device():
    pytest.importorskip("torch")
    from hvd_sparse.kernels.torch import KernelsByPlace, TorchKernels

    configuration, send_rows = worlds.configure(TOPK), CompiledKernels.send_rows
    with mock.patch.object(CompiledKernels, "send_rows", autospec=True) as sends:
        sends.side_effect = send_rows
        found = trained(
            configuration, lambda: KernelsByPlace(CompiledKernels(), TorchKernels(reference))
        )
        assert sends.call_count > STEPS
    assert found == trained(configuration)


def test_a_vector_that_several_threads_work_on_is_left_out_of_the_rows():
    configuration, shapes = worlds.configure(TOPK), ((512, 512), (40, 50))
    sizes, send_rows = {1: set(), 2: set()}, CompiledKernels.send_rows

    def noting(kernels, rows, *others):
        sizes[kernels.threads] |= set(rows["numel"].tolist())
        return send_rows(kernels, rows, *others)

    noted = mock.patch.object(CompiledKernels, "send_rows", noting)
    with noted, mock.patch.dict(globals(), SHAPES=shapes):
        one, two = (trained(configuration, partial(CompiledKernels, threads)) for threads in (1, 2))
    assert one == two
    assert sizes == {1: {numba.SHARED, 2000}, 2: {2000}}


def variants_of(frame, codec, rng):
    """Bodies that are cut or have another bit, with right checksums, and frames without these."""
    body = frame[32:]
    bodies = [body, body[:-1], np.append(body, np.uint8(1)), body[:8]]
    for bit in rng.integers(0, 8 * body.size, 60):
        bodies.append(body.copy())
        bodies[-1][bit >> 3] ^= 1 << (bit & 7)
    head = frame[:32].tobytes()
    yield from (np.frombuffer(repaired_frame(head + b.tobytes(), codec), np.uint8) for b in bodies)
    yield from (frame[:-1], frame[:20], np.append(frame, np.uint8(0)))
    for place in rng.integers(frame.size, size=9):
        yield np.where(np.arange(frame.size) == place, frame ^ 4, frame).astype(np.uint8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("codec", "kind"), [(IndexValue(), PLAIN), (SignMean(), SIGNS)], ids=str)
@pytest.mark.parametrize(("numel", "count"), [(50, 3), (9, 9), (70_000, 2), (3000, 29), (600, 80)])
def test_rows_take_just_the_frames_that_the_codec_takes(numel, count, codec, kind, dtype):
    kernels, rng = CompiledKernels(), np.random.default_rng(count)
    for _ in range(20):
        indices = np.sort(rng.choice(numel, count, replace=False)).astype(np.uint32)
        chosen = Selection(indices, rng.normal(size=count).astype(dtype), numel)
        frame, head = codec.encode(chosen), frame_head(codec, np.dtype(dtype))
        longer = codec.encode(Selection(indices, chosen.values, numel + 1))
        for given in [longer, *variants_of(frame, codec, rng)]:
            odd, out = np.zeros(given.size + 1, np.uint8), np.full(numel, 5, dtype)
            odd[1:] = given
            rows = np.array([(address(out), numel, 0, 2, 0.5, 0.0)], ARRIVED)
            frames = np.array([(address(f), f.size) for f in (frame, odd[1:])], FRAME)
            kernels.sum_rows(rows, frames, head, kind, out.dtype)
            try:
                taken = [codec.decode(each) for each in (frame, given)]
            except CorruptPayload:
                taken = []
            if not taken or given is longer:
                assert np.isnan(rows["most"][0]) and (out == 5).all()
                continue
            with np.errstate(over="ignore"):
                squares = [np.square(each.values, dtype=np.float64).sum() for each in taken]
            if np.isnan(rows["most"][0]):  # squares beyond the dtype are the walk's
                assert max(squares) > np.finfo(dtype).max
                continue
            expected = np.zeros(numel, dtype)
            for each in taken:
                expected[each.indices] += each.values * dtype(0.5)
            assert out.tobytes() == expected.tobytes()
            assert rows["most"][0] == pytest.approx(sum(map(np.sqrt, squares)))


COMPILED = {
    name: value
    for module in (numba.bits, numba.fused, lists, numba.packing, numba.rows, numba.scans)
    for name, value in vars(module).items()
    if hasattr(value, "py_func")
    and value.py_func.__module__ == module.__name__
    and not name.startswith("_")
}


def test_the_fast_engine_is_used_unless_told_otherwise():
    assert isinstance(resolve_engine(None), CompiledKernels)
    assert resolve_engine("numpy") is reference
    assert resolve_engine({"id": "numba", "threads": 2}).threads == 2


@pytest.mark.parametrize("name", COMPILED)
def test_nothing_is_compiled_in_a_training_step_and_the_interpreter_is_free(name):
    function = COMPILED[name]
    assert not function._can_compile, "a call with other types would compile"
    assert function.targetoptions["nogil"]
    assert function.signatures


@pytest.mark.parametrize("features", ["", "+avx,+avx2,+fma"], ids=["without-avx", "avx2"])
@pytest.mark.full
def test_other_processors_get_the_same_bits(features, tmp_path):
    script = (
        "from conformance.fused_checks import check_kernels\n"
        "from hvd_sparse.kernels.engines import resolve_engine\n"
        "from hvd_sparse.kernels.numba.fused import add_and_take\n"
        "code = add_and_take.inspect_asm(add_and_take.signatures[0])\n"
        "assert 'add_and_take' in code and '%zmm' not in code\n"
        "check_kernels(resolve_engine('numba'))\n"
    )
    machine = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}
    done = run_python("-c", script, **machine, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_threads_that_take_subnormal_numbers_for_zero_take_no_zeros():
    pytest.importorskip("torch", reason="it flushes subnormal numbers")
    script = (
        "import numpy as np, torch\n"
        "from hvd_sparse.kernels import reference\n"
        "from hvd_sparse.kernels.engines import resolve_engine\n"
        "x = np.zeros(1000, np.float32); x[::7] = 1e-40; x[::5] = 1.0\n"
        "assert torch.set_flush_denormal(True)\n"
        "for kernels in (reference, resolve_engine('numba')):\n"
        "    assert kernels.moments(x).nonzeros == 200\n"
        "    assert kernels.take_at_least(x, 0.0).indices.tolist() == list(range(0, 1000, 5))\n"
        "    assert kernels.take_at_most(x, 0.0, 300)[0] == 200\n"
        "    assert kernels.take_at_least(x, 0.5).indices.tolist() == list(range(0, 1000, 5))\n"
    )
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "numel", [lists.LARGE_BYTES // 4 + more for more in (0, 1, lists.BLOCK + 17)]
)
def test_sums_written_past_the_caches_are_right_and_touch_nothing_else(dtype, numel):
    rng = np.random.default_rng(numel)
    parts = []
    for count in (0, 40, numel // 3):
        indices = np.sort(rng.choice(numel, count, replace=False)).astype(np.uint32)
        parts.append(Selection(indices, rng.standard_normal(count).astype(dtype), numel))
    expected = np.zeros(numel, dtype)
    for part in parts:
        expected[part.indices] += part.values
    for start in range(18):
        memory = np.full(numel + 40, 7, dtype)
        CompiledKernels().assemble(memory[start : start + numel], parts)
        assert memory[start : start + numel].tobytes() == expected.tobytes()
        assert (memory[:start] == 7).all() and (memory[start + numel :] == 7).all()
