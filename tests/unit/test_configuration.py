"""Configurations: made from ids, mappings or objects, compared by what ranks share, in JSON."""

import dataclasses
import inspect
import json
import re

import pytest
from compressors import Made, required
from worlds import tensors

from hvd_sparse.cli import papers
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.compressor import Compressor
from hvd_sparse.methods import METHODS, Methods
from hvd_sparse.registry import CODECS
from hvd_sparse.types import TensorSpec

TOPK = {"id": "topk", "density": 0.25}
SHARED = {
    "selector": {"id": "topk", "density": 0.5},
    "schedule": {"id": "dense_warmup", "warmup_steps": 5},
    "min_numel": 7,
    "compress_1d": True,
    "rollback": False,
    "allow_dense": False,
    "max_gathered_bytes": 1_000_000,
    "clip_grad_norm": 2.5,
    "groups": (("a", "b"), ("c",)),
    "select_over": "group",
    "on_nonfinite": "raise",
    "check_replicas_every": 100,
}
LOCAL = {
    "name": "generator",
    "engine": "numpy",
    "timeout_s": 5.0,
    "telemetry": ({"id": "jsonl", "path": "run.jsonl"},),
    "telemetry_every": 7,
    "wire": "host",
}


def create(**options):
    return Configuration.create(**{"selector": TOPK, **options})


def test_a_configuration_comes_back_equal_from_json():
    configuration = create(**SHARED, **LOCAL)
    again = Configuration.create(**json.loads(json.dumps(configuration.describe())))
    assert again == configuration
    assert (again.digest, again.checksum) == (configuration.digest, configuration.checksum)


def test_every_option_is_tried_below():
    parts = {"memory", "codec", "exchange"}
    assert {f.name for f in dataclasses.fields(Configuration)} == {*SHARED, *LOCAL, *parts}


@pytest.mark.parametrize("option", [*SHARED, *LOCAL])
def test_digest_tells_apart_what_ranks_must_share_and_ignores_what_is_a_ranks_own(option):
    changed, plain = create(**{option: {**SHARED, **LOCAL}[option]}), create()
    assert changed != plain
    assert (changed.digest != plain.digest) == (option in SHARED)
    assert (changed.checksum != plain.checksum) == (option in SHARED)


def test_a_frontend_without_a_device_wire_refuses_it():
    with pytest.raises(InvalidOption, match=r"wire is 'device', which hvd_sparse\.torch alone"):
        Compressor(create(wire="device"), "nowhere.0")
    for wire in ("auto", "host"):
        Compressor(create(wire=wire, name=wire), "nowhere.0").close()


def test_unknown_options_are_refused_with_those_there_are():
    with pytest.raises(InvalidOption, match=r"unknown .*'dense', 'min_size'; .*allow_dense"):
        create(min_size=3, dense=True)


WRONG = {
    "min_numel": [-1, 1.5, True],
    "timeout_s": [0, float("inf"), float("nan"), "soon", True],
    "wire": ["gpu", None],
    "name": ["", 3],
    "compress_1d": [1],
    "rollback": ["no"],
    "allow_dense": [None],
    "telemetry": ["yes"],
    "telemetry_every": [0],
    "on_nonfinite": ["ignore"],
    "groups": [0, "all", "plan", [["a"], ["a"]], [[1]]],
    "select_over": ["bucket", True],
    "max_gathered_bytes": [0, 1e6],
    "clip_grad_norm": [0.0, "1"],
    "check_replicas_every": [-1, 1.5, True],
}


@pytest.mark.parametrize("option", WRONG)
def test_options_of_the_wrong_kind_are_refused_by_name_and_value(option):
    for value in WRONG[option]:
        with pytest.raises(InvalidOption, match=re.escape(f"{option} is {value!r}")):
            create(**{option: value})


def test_options_of_an_engine_are_described_and_checked():
    pytest.importorskip("numba", reason="an engine is made where its package is")
    engine = {"id": "numba", "threads": 2}
    assert create(engine=engine).describe()["engine"] == engine
    with pytest.raises(InvalidOption, match=r"threads of NumbaEngine is 0"):
        create(engine={"id": "numba", "threads": 0})


@pytest.mark.parametrize(
    ("shape", "options", "is_sparse"),
    [
        ((32, 32), {}, True),
        ((31, 33), {}, False),
        ((2048,), {}, False),
        ((2048,), {"compress_1d": True}, True),
        ((), {"min_numel": 1, "compress_1d": True}, True),
        ((), {"min_numel": 1}, False),
        ((0, 5), {"min_numel": 0, "compress_1d": True}, False),
        ((1, 1), {"min_numel": 0}, True),
    ],
)
def test_small_flat_and_empty_tensors_stay_dense(shape, options, is_sparse):
    (spec,) = tensors(shape)
    assert create(**options).is_sparse(spec.shape, spec.numel) is is_sparse


SPECIAL = {
    "dgc": {
        "selector": {"id": "dgc_sampled", "density": 0.1},
        "memory": {"id": "momentum_correction", "momentum": 0.9},
    },
    "mgs": {"selector": {"id": "topk", "density": 0.1}, "select_over": "group"},
    "redsync": {"selector": {"id": "redsync_trimmed", "density": 0.1}},
    "scalecom": {"selector": {"id": "topk", "density": 0.1}, "exchange": "shared_index"},
    "gtopk": {"selector": {"id": "topk", "density": 0.1}, "exchange": "gtopk"},
    "oktopk": {"selector": {"id": "reused_threshold", "density": 0.1}, "exchange": "oktopk"},
    "chunked": {"exchange": "shared_index"},
    "adacomp": {"codec": "ternary"},
    "ef_sign": {"codec": "one_bit"},
    "stc": {"codec": "sign_mean"},
    "sbc": {"codec": "one_sign"},
    "signsgd": {"selector": "sign_vote", "memory": "majority_vote", "codec": "one_bit"},
    "strom": {
        "selector": {"id": "fixed_threshold", "threshold": 0.1, "signs_only": True},
        "codec": "sign_index",
    },
    "terngrad": {"memory": "none", "codec": "two_bit"},
}
"""Methods that are not the selector of their own name with error feedback and ``index_value``."""


@pytest.mark.parametrize("method", METHODS)
def test_a_named_method_is_the_preset_of_its_parts(method):
    given = required(method)
    made = getattr(Made, method)("p", **given, min_numel=3, process_set="s")
    assert (made.params, made.process_set) == ("p", "s")
    expected = {"selector": {"id": method, **given}, **SPECIAL.get(method, {})}
    assert made.configuration == create(**expected, min_numel=3)
    assert METHODS[method] in papers()


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_own_codec_is_a_default_that_another_takes_the_place_of(method):
    made = getattr(Made, method)("p", **required(method), codec="run16")
    assert made.configuration.codec == CODECS.create("run16")


@pytest.mark.parametrize(
    ("codec", "world_size", "goes_dense"),
    [
        ("index_value", 4, True),
        ("index_value", 3, False),
        ("index_value", 1, False),
        ("block16", 8, True),
        ("block16", 7, False),
        ("bitmap", 8, True),
        ("bitmap", 7, False),
        ("sign_mean", 15, False),
    ],
)
def test_where_dense_moves_no_more_bytes_depends_on_the_codec(codec, world_size, goes_dense):
    (spec,) = tensors((40, 40))
    assert create(codec=codec).goes_dense(spec, 0, world_size) is goes_dense
    assert create(codec=codec, allow_dense=False).goes_dense(spec, 0, world_size) is False


@pytest.mark.parametrize(
    ("parts", "density", "world_size", "goes_dense"),
    [
        ({}, 0.25, 5, False),  # 12 bytes an entry
        ({}, 0.25, 6, True),
        ({"codec": {"id": "auto", "values": "float32"}}, 0.25, 7, False),
        ({"codec": {"id": "auto", "values": "float32"}}, 0.25, 8, True),
        ({"exchange": "shared_index"}, 0.7, 4, False),  # 4 bytes of index, and twice 8 of value
        ({"exchange": "shared_index"}, 0.9, 4, True),
        ({"exchange": "gtopk"}, 0.25, 16, False),
        ({"exchange": "gtopk"}, 0.25, 33, True),
    ],
)
def test_values_of_float64_gradients_count_8_bytes_dense_and_sparse(
    parts, density, world_size, goes_dense
):
    spec = TensorSpec("t", (40, 40), "float64")
    made = create(selector={"id": "topk", "density": density}, **parts)
    assert made.goes_dense(spec, 0, world_size) is goes_dense


@pytest.mark.parametrize("codec", ["index_value", "sign_mean", "one_bit"])
def test_the_first_steps_of_a_dense_warm_up_are_dense_with_any_codec(codec):
    (spec,) = tensors((40, 40))
    warm_up = {"id": "dense_warmup", "warmup_steps": 2}
    made = create(codec=codec, schedule=warm_up)
    assert [made.goes_dense(spec, step, 2) for step in range(3)] == [True, True, False]
    assert not create(codec=codec, schedule=warm_up, allow_dense=False).goes_dense(spec, 0, 2)


def test_every_method_of_the_class_is_listed_with_its_paper():
    not_methods = {"build", "from_config", "compress", "decompress"}
    assert set(METHODS) == {name for name in dir(Methods) if name[0] != "_"} - not_methods
    for method, paper in METHODS.items():
        words = " ".join(inspect.getdoc(getattr(Methods, method)).split())
        assert f"Paper: {paper}." in words


@pytest.mark.parametrize("method", [*METHODS, "build", "from_config"])
def test_a_method_that_horovod_is_given_without_a_call_answers_with_the_call(method):
    class Compression(Methods):
        pass

    words = rf"the method itself: call it, as in compression=Compression\.{method}\("
    with pytest.raises(InvalidOption, match=words):
        getattr(Compression, method).compress(None)
    with pytest.raises(InvalidOption, match=r"call one of its methods, .*Compression\.ldte_bs\("):
        Compression.compress(None)


@pytest.mark.parametrize("method", METHODS)
def test_named_methods_have_no_default_density_and_no_unknown_options(method):
    for option in required(method):
        with pytest.raises(InvalidOption if option == "density" else TypeError, match=option):
            getattr(Made, method)("p")
    assert set(required(method)) <= {"density", "threshold"}
    with pytest.raises(InvalidOption, match=r"unknown option 'densty'.* mean 'density'"):
        getattr(Made, method)("p", **required(method), densty=0.2)


def test_a_density_that_is_missing_or_misspelt_is_asked_for():
    with pytest.raises(InvalidOption, match=r"ldte_bs has no density .*densty\): give density="):
        Made.ldte_bs("p", densty=0.2)


@pytest.mark.parametrize("config", [None, {"a": 1}, "topk"])
def test_what_is_no_configuration_is_refused(config):
    with pytest.raises(InvalidOption, match=r"give the result of another compressor's config\(\)"):
        Made.from_config("p", config)
