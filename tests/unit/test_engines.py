"""Which engine runs, what the slow one says, and threads that flush subnormal numbers."""

import pytest
from installed import has_triton, is_installed, with_triton
from programs import run_python

needs_torch = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
WITHOUT_NUMBA = (
    "import sys, logging; logging.basicConfig(format='%(message)s'); sys.modules['numba'] = None\n"
)
RESOLVE = "from hvd_sparse.kernels.engines import resolve_engine\nkernels = resolve_engine('{}')\n"


def test_without_numba_it_is_numpy_which_says_so_once():
    script = (
        "from hvd_sparse.kernels import reference\n"
        "from hvd_sparse.kernels.engines import resolve_engine\n"
        "assert resolve_engine(None) is resolve_engine(None) is reference"
    )
    done = run_python("-c", WITHOUT_NUMBA + script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'hvd-sparse[fast]'") == 1


COMPILED = """
from numba import types
from hvd_sparse.kernels.numba.vectors import compiled

@compiled([types.int64(types.int64)])
def one_more(number):
    return number + 1

@compiled([types.int64(types.int64)])
def one_less(number):
    return number - 1
"""


@pytest.mark.skipif(not is_installed("numba"), reason="numba is not installed")
def test_numba_says_once_that_it_compiles_and_nothing_if_its_cache_has_the_functions(tmp_path):
    run_python("-c", "import hvd_sparse.kernels.numba")  # from here on, they are in the cache
    (tmp_path / "added.py").write_text(COMPILED)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import added; added.one_more(1)"
    first, second = (run_python("-c", script) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stderr.count("numba compiles the kernels") == 1
    assert "numba compiles" not in second.stderr


def test_numpy_that_was_asked_for_says_nothing():
    done = run_python("-c", WITHOUT_NUMBA + RESOLVE.format("numpy"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("engine", "extra"), [("numba", "fast"), ("torch", "torch")])
def test_an_engine_that_is_asked_for_and_not_there_is_an_error_with_the_remedy(engine, extra):
    done = run_python("-c", f"import sys; sys.modules['{engine}'] = None\n{RESOLVE.format(engine)}")
    assert done.returncode == 1
    assert "InvalidOption" in done.stderr
    assert f"pip install 'hvd-sparse[{extra}]'" in done.stderr


@needs_torch
def test_the_engine_torch_needs_no_numba():
    script = (
        "import numpy as np\n"
        "assert kernels.take_largest(np.arange(9.0), 2).indices.tolist() == [7, 8]"
    )
    done = run_python("-c", WITHOUT_NUMBA + RESOLVE.format("torch") + script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not has_triton(), reason="triton is not installed")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("resolve_engine('triton')", "no gradient of this compressor stays there"),
        ("TritonEngine().kernels", "needs a GPU"),
    ],
)
def test_triton_is_refused_where_no_vector_is_on_a_gpu(how, words):
    done = run_python(
        "-c",
        f"from hvd_sparse.kernels.engines import TritonEngine, resolve_engine\n{how}",
        CUDA_VISIBLE_DEVICES="",
        **with_triton(),
    )
    assert done.returncode == 1
    assert "InvalidOption" in done.stderr
    assert words in done.stderr
    assert "leave engine out" in done.stderr


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


@needs_torch
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
    assert 'rank 1 has "subnormal numbers": "treated as zero"' in str(error), error
"""


@needs_torch
def test_a_rank_that_alone_takes_subnormal_numbers_for_zero_is_named_before_the_first_step():
    run = run_python("-c", HANDSHAKE)
    assert run.returncode == 0, run.stderr
