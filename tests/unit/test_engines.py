"""Which engine runs, what the slow one says, and threads that flush subnormal numbers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from installed import has_triton, is_installed, with_triton
from programs import run_python
from tiers import TESTS

from hvd_sparse.kernels import reference

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


@needs_torch
def test_on_devices_kernels_take_arguments_by_name_as_on_the_host():
    import torch

    from hvd_sparse.kernels.torch import KernelsByPlace, TorchKernels
    from hvd_sparse.kernels.torch.vector import DeviceVector

    kernels = KernelsByPlace(reference, TorchKernels(reference))
    x = np.array([1.0, -4.0, 2.0, 3.0], np.float32)
    for vector in (x, DeviceVector(torch.from_numpy(x))):
        assert kernels.take_at_least(vector, threshold=3.0).indices.tolist() == [1, 3]
        assert kernels.take_at_least(x=vector, threshold=3.0).indices.tolist() == [1, 3]


def plus_one(number):
    return number + 1


def minus_one(number):
    return number - 1


@pytest.fixture
def vectors():
    pytest.importorskip("numba")
    from hvd_sparse.kernels.numba import vectors

    return vectors


@pytest.fixture
def compile_anew(vectors, monkeypatch, tmp_path):
    """Returns a function that compiles two functions, with a cache of their own."""
    from numba import config, types

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    signature = types.int64(types.int64)
    return lambda: [vectors.compiled([signature])(each) for each in (plus_one, minus_one)]


def test_numba_compiles_and_says_so_once_unless_its_cache_has_the_functions(
    vectors, compile_anew, monkeypatch, caplog
):
    for is_cached in (False, True):
        vectors._say_compiling.cache_clear()
        caplog.clear()
        assert [bool(each.stats.cache_hits) for each in compile_anew()] == [is_cached] * 2
        assert caplog.text.count("numba compiles the kernels") == (not is_cached)
    # As if another file of the kernels had changed.
    monkeypatch.setattr(vectors, "sources", lambda: b"those of another version")
    assert not compile_anew()[0].stats.cache_hits


def test_the_digest_of_the_kernels_covers_all_compiled_files(vectors, monkeypatch, tmp_path):
    folder = Path(vectors.__file__).parent.parent
    copy = tmp_path / "kernels"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(vectors, "__file__", str(copy / "numba" / "vectors.py"))
    found = [vectors.sources.__wrapped__()]
    assert found == [vectors.sources()]
    for name in ("numba/fused.py", "packing.py", "rows.py"):
        with (copy / name).open("a") as file:
            file.write("CHANGED = True\n")
        found.append(vectors.sources.__wrapped__())
    assert len(set(found)) == 4


def test_without_a_folder_for_its_cache_numba_compiles_and_says_what_to_do(
    vectors, compile_anew, monkeypatch, caplog
):
    from numba.core.caching import CompileResultCacheImpl

    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])  # as if none were writable
    vectors._say_compiling.cache_clear()
    assert compile_anew()[0](1) == 2
    assert "set NUMBA_CACHE_DIR" in caplog.text


OLD = """
import logging, sys
logging.basicConfig()
sys.path.insert(0, {folder!r})
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.engines import resolve_engine
assert resolve_engine(None) is reference
resolve_engine("numba")
"""


@pytest.mark.parametrize(
    ("version", "switch", "words"),
    [
        ("0.61.2", "0", "numba 0.61.2 is older than 0.62: pip install 'hvd-sparse[fast]'"),
        ("0.62.0rc1", "1", "NUMBA_DISABLE_JIT switches numba's compiler off: unset it"),
    ],
)
def test_a_numba_that_cannot_compile_the_kernels_is_not_used(version, switch, words, tmp_path):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").touch()
    metadata = tmp_path / f"numba-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: numba\nVersion: {version}\n")
    done = run_python("-c", OLD.format(folder=str(tmp_path)), NUMBA_DISABLE_JIT=switch)
    assert done.returncode == 1
    assert done.stderr.count(words) == 2, done.stderr  # a warning, and the error
    assert "InvalidOption" in done.stderr


def test_the_oldest_numba_that_is_used_is_the_oldest_that_the_package_asks_for():
    from hvd_sparse.kernels.engines import OLDEST

    project = (TESTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"numba>={".".join(map(str, OLDEST))}"' in project


@pytest.mark.parametrize(("engine", "extra"), [("numba", "fast"), ("torch", "torch")])
def test_an_engine_that_is_asked_for_and_not_there_is_an_error_with_the_remedy(engine, extra):
    done = run_python("-c", f"import sys; sys.modules['{engine}'] = None\n{RESOLVE.format(engine)}")
    assert done.returncode == 1
    assert "InvalidOption" in done.stderr
    assert f"pip install 'hvd-sparse[{extra}]'" in done.stderr


@pytest.mark.parametrize("engine", ["numpy", pytest.param("torch", marks=needs_torch)])
def test_an_engine_that_was_asked_for_needs_no_numba_and_says_nothing(engine):
    script = (
        "import numpy as np\n"
        "assert kernels.take_largest(np.arange(9.0), 2).indices.tolist() == [7, 8]"
    )
    done = run_python("-c", WITHOUT_NUMBA + RESOLVE.format(engine) + script)
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
