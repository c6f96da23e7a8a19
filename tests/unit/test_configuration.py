"""Configurations, compared by what ranks share and in JSON; bad input is refused by name."""

import dataclasses
import inspect
import json
import math
import re
from dataclasses import dataclass

import cases
import numpy as np
import pytest
from compressors import Made, required
from distributions import draw
from worlds import tensors

from hvd_sparse.cli import papers
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption, SparseError, UnknownName, UnsupportedInput
from hvd_sparse.frontend.compressor import Compressor
from hvd_sparse.frontend.naming import check_keys
from hvd_sparse.methods import METHODS, Methods
from hvd_sparse.registry import ALL, CODECS, EXCHANGES, MEMORIES, SCHEDULES, SELECTORS, Registry
from hvd_sparse.selectors.contract import DensitySelector
from hvd_sparse.types import INDEX_LIMIT, TensorSpec

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
def test_a_named_method_is_the_preset_of_its_parts_of_which_the_codec_may_be_another(method):
    given = required(method)
    made = getattr(Made, method)("p", **given, min_numel=3, process_set="s")
    assert (made.params, made.process_set) == ("p", "s")
    expected = {"selector": {"id": method, **given}, **SPECIAL.get(method, {})}
    assert made.configuration == create(**expected, min_numel=3)
    other = getattr(Made, method)("p", **given, codec="run16")
    assert other.configuration.codec == CODECS.create("run16")
    assert METHODS[method] in papers()


@pytest.mark.parametrize(
    ("parts", "dtype", "density", "world_size", "goes_dense"),
    [
        ({}, "float32", 0.25, 4, True),
        ({}, "float32", 0.25, 3, False),
        ({}, "float32", 0.25, 1, False),
        ({}, "float64", 0.25, 5, False),  # 12 bytes an entry
        ({}, "float64", 0.25, 6, True),
        ({"codec": "block16"}, "float32", 0.25, 8, True),
        ({"codec": "block16"}, "float32", 0.25, 7, False),
        ({"codec": "sign_mean"}, "float32", 0.25, 15, False),
        ({"codec": {"id": "auto", "values": "float32"}}, "float64", 0.25, 7, False),
        ({"codec": {"id": "auto", "values": "float32"}}, "float64", 0.25, 8, True),
        # 4 bytes of index, and twice 8 of value
        ({"exchange": "shared_index"}, "float64", 0.7, 4, False),
        ({"exchange": "shared_index"}, "float64", 0.9, 4, True),
        ({"exchange": "gtopk"}, "float64", 0.25, 16, False),
        ({"exchange": "gtopk"}, "float64", 0.25, 33, True),
    ],
)
def test_where_dense_moves_no_more_bytes_depends_on_codec_exchange_and_dtype(
    parts, dtype, density, world_size, goes_dense
):
    spec = TensorSpec("t", (40, 40), dtype)
    for allow_dense in (True, False):
        options = {"selector": {"id": "topk", "density": density}, "allow_dense": allow_dense}
        made = create(**options, **parts)
        assert made.goes_dense(spec, 0, world_size) is (goes_dense and allow_dense)


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
    with pytest.raises(InvalidOption, match=r"density is 0\.2, .*selector=.* leave density out"):
        Made.adacomp("p", density=0.2)


@pytest.mark.parametrize("config", [None, {"a": 1}, "topk"])
def test_what_is_no_configuration_is_refused(config):
    with pytest.raises(InvalidOption, match=r"give the result of another compressor's config\(\)"):
        Made.from_config("p", config)


# -- bad input of parts and tensors ---------------------------------------------------------------

NO_DENSITIES = [0, 0.0, -1, -0.5, 1.5, 2, math.nan, math.inf, -math.inf, True, False]
NO_DENSITIES += ["x", "0.1", None, 1j, [0.1]]


@pytest.mark.parametrize(
    "id", [id for id in SELECTORS if issubclass(SELECTORS.get(id), DensitySelector)]
)
def test_a_density_outside_zero_to_one_is_refused_with_an_example(id):
    for density in NO_DENSITIES:
        with pytest.raises(InvalidOption) as caught:
            SELECTORS.create(id, density=density)
        assert f"density of {SELECTORS.get(id).__name__} is {density!r}" in str(caught.value)
        assert "in (0, 1]; for example, 0.001 sends one entry in a thousand" in str(caught.value)
        with pytest.raises(InvalidOption, match=r"in \(0, 1\]"):
            SCHEDULES.create("constant", value=density)


@pytest.mark.parametrize("density", [0.5, np.float32(0.5), np.float64(0.5), 1])
def test_numbers_of_any_kind_are_densities(density):
    assert SELECTORS.create("topk", density=density).density == float(density)


WRONG_OF_PARTS = {
    (SELECTORS, "ldte", "cap"): [0.5, math.nan, math.inf, "much"],
    (SELECTORS, "ldte_bs", "search"): ["newton", []],
    (SELECTORS, "ldte_bs", "tolerance"): [
        *[(0.0, 1.3), (1.1, 1.3), (0.8, 0.9), (0.8,), (0.8, 1.0, 1.3), (0.8, math.nan)],
        *[(0.8, math.inf), ("low", "high"), 0.2],
    ],
    (SELECTORS, "ldte_bs", "max_passes"): [0, 2.5, True],
    (SELECTORS, "ldte_bs", "warm_start"): ["no"],
    (SELECTORS, "gaussian_k", "variant"): ["mine", []],
    (SELECTORS, "gaussian_k", "cap"): [0.5],
    (SELECTORS, "dgc_sampled", "sample_density"): [0],
    (SELECTORS, "dgc_sampled", "bounds"): [(0.8,), (1.0, 1.3), 1.3],
    (SELECTORS, "dgc_sampled", "max_rounds"): [-1],
    (SELECTORS, "dgc_sampled", "seed"): [0.5],
    (SELECTORS, "redsync_trimmed", "step"): [1, "small"],
    (SELECTORS, "redsync_search", "reuse_steps"): [-1],
    (SELECTORS, "redsync_search", "max_passes"): [True],
    (SELECTORS, "sidco", "distribution"): ["normal"],
    (SELECTORS, "sidco", "stages"): [0, 1.5],
    (SELECTORS, "sidco", "first_ratio"): [1.0],
    (SELECTORS, "sidco", "adapt_every"): [-1],
    (SELECTORS, "sidco", "cap"): [math.inf],
    (SELECTORS, "random_k", "seed"): [-1],
    (SELECTORS, "random_k", "shared_seed"): [1],
    (SELECTORS, "chunked", "chunk_length"): [0, "long"],
    (SELECTORS, "adacomp", "bin_length"): [0, 2.5],
    (SELECTORS, "terngrad", "clip"): [0, "some"],
    (SELECTORS, "fixed_threshold", "threshold"): [0, math.nan],
    (SELECTORS, "fixed_threshold", "max_density"): [0],
    (SELECTORS, "fixed_threshold", "signs_only"): ["yes"],
    (MEMORIES, "momentum_correction", "momentum"): [1.0, "much", 10**400],
    (MEMORIES, "momentum_correction", "weight_decay"): [-0.1],
    (MEMORIES, "momentum_correction", "clip_norm"): [0],
    (MEMORIES, "momentum_correction", "nesterov"): [1],
    (MEMORIES, "momentum_correction", "masking"): [None],
    (MEMORIES, "muon_correction", "momentum"): [1.0],
    (MEMORIES, "muon_correction", "ns_steps"): [0],
    (MEMORIES, "muon_correction", "ns_coefficients"): [(1.0, 2.0)],
    (MEMORIES, "muon_correction", "scale"): [0.0],
    (MEMORIES, "muon_correction", "weight_decay"): [0.1],
    (MEMORIES, "low_pass", "beta"): [0, 1.5, "low"],
    (EXCHANGES, "gtopk", "conserving"): [1],
    (EXCHANGES, "oktopk", "period"): [0],
    (EXCHANGES, "oktopk", "drift"): [0.9],
    (EXCHANGES, "oktopk", "slack"): [0.5],
    (EXCHANGES, "oktopk", "least_entries"): [0],
    (EXCHANGES, "hierarchical", "ranks_per_node"): [0],
    (EXCHANGES, "auto", "latency_ms"): [0],
    (EXCHANGES, "auto", "bandwidth_gbit"): [-1],
    (EXCHANGES, "auto", "ranks_per_node"): [1.5],
}


@pytest.mark.parametrize(("registry", "id", "name"), WRONG_OF_PARTS)
def test_options_that_no_part_could_keep_are_refused_by_name(registry, id, name):
    given = {"threshold": 1.0} if id == "fixed_threshold" else {}
    for value in WRONG_OF_PARTS[registry, id, name]:
        with pytest.raises(InvalidOption, match=f"{name} of {registry.get(id).__name__} is"):
            cases.Case(id, {**given, name: value}).create(registry, density=0.1)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["a", "b", "a"], "two tensors are called 'a': give every tensor a name of its own"),
        (["a", ""], "tensor number 1 has the name '': give every tensor a non-empty string"),
        ([None], "tensor number 0 has the name None"),
    ],
)
def test_duplicate_and_missing_names_are_refused(keys, words):
    with pytest.raises(InvalidOption, match=words):
        check_keys(keys)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool", "complex64", "float8_e4m3fn"])
def test_tensors_that_hold_no_floats_are_refused_by_name(dtype):
    words = rf"tensor 'embedding' has dtype {dtype}: only .*float32.*leave it out"
    with pytest.raises(UnsupportedInput, match=words):
        TensorSpec("embedding", (10, 10), dtype)


@pytest.mark.parametrize("shape", [(2**16, 2**16), (2**32,), (2**40, 3)])
def test_tensors_beyond_the_index_width_are_refused_by_name_and_size(shape):
    assert TensorSpec("w", (INDEX_LIMIT - 1,), "float16").numel == 2**32 - 1
    numel = math.prod(shape)
    with pytest.raises(UnsupportedInput, match=rf"'w' has {numel} entries: .*{2**32 - 1}; split"):
        TensorSpec("w", shape, "float32")


# -- parts: which may be joined, and names that registries do not know -----------------------------


@pytest.mark.parametrize("memory", cases.MEMORIES, ids=str)
def test_selectors_and_memories_join_where_their_declarations_allow_it(memory):
    for selector in cases.SELECTORS:
        chosen, kept = selector.create(SELECTORS, density=0.1), memory.create(MEMORIES)
        assert chosen.is_unbiased == (selector.id == "terngrad")
        forgets = chosen.changes_values and not kept.keeps_rounding and not chosen.is_unbiased
        if kept.counts_votes:
            forgets = not chosen.sends_votes
        mistakes = chosen.needs_gradient and not (kept.adds_gradient or kept.finishes)
        if forgets or mistakes:
            with pytest.raises(InvalidOption, match=r"use memory='error_feedback'"):
                Configuration.create(selector=chosen, memory=kept)
        else:
            assert Configuration.create(selector=chosen, memory=kept).selector == chosen


@pytest.mark.parametrize("codec", cases.CODECS, ids=str)
def test_a_codec_that_rounds_needs_a_memory_that_keeps_the_rounding(codec):
    for selector in cases.SELECTORS:
        chosen, made = selector.create(SELECTORS, density=0.1), codec.create(CODECS)
        is_exact = made.is_exact or (made.is_exact_for_signs and chosen.changes_values)
        is_refused = not is_exact or (chosen.changes_values and not chosen.is_unbiased)
        assert Configuration.create(selector=chosen, codec=made).codec == made
        if is_refused:
            with pytest.raises(InvalidOption, match=r"use memory='error_feedback'"):
                Configuration.create(selector=chosen, codec=made, memory="none")
        else:
            assert Configuration.create(selector=chosen, codec=made, memory="none").codec == made


@pytest.mark.parametrize(
    "codec", [case for case in cases.CODECS if case.create(CODECS).is_exact_for_signs], ids=str
)
def test_selectors_of_signs_are_sent_bit_for_bit_by_codecs_of_signs(codec):
    for selector in cases.SELECTORS:
        chosen, made = selector.create(SELECTORS, density=0.1), codec.create(CODECS)
        for dtype in ("float32", "float64"):
            vector = draw("laplace", 2_000, dtype)
            selection = chosen.select(vector, rng=np.random.default_rng(0))
            decoded = made.decode(made.encode(selection))
            assert decoded.indices.tolist() == selection.indices.tolist()
            is_same = decoded.values.tobytes() == selection.values.tobytes()
            assert is_same or not chosen.changes_values


@pytest.mark.parametrize("schedule", cases.SCHEDULES, ids=str)
def test_a_schedule_is_refused_by_a_selector_that_decides_by_itself(schedule):
    for selector in cases.SELECTORS:
        chosen = selector.create(SELECTORS, density=schedule.options.get("value", 0.1))
        described = {"id": schedule.id, **schedule.options}
        if hasattr(chosen, "density"):
            assert Configuration.create(selector=chosen, schedule=described).density(0) is not None
        else:
            with pytest.raises(InvalidOption, match="leave out schedule"):
                Configuration.create(selector=chosen, schedule=described)
            assert Configuration.create(selector=chosen).density(0) is None


@dataclass(frozen=True)
class Gadget:
    size: int
    colour: str = "red"
    range: tuple[int, int] = (1, 2)


@pytest.fixture
def gadgets():
    registry = Registry("gadget")
    registry.register("gadget")(Gadget)
    return registry


@pytest.mark.parametrize("registry", ALL, ids=lambda r: r.kind)
@pytest.mark.parametrize("id", ["nonsense", "", None, 3, [], {}], ids=repr)
def test_an_unknown_id_is_refused_with_those_there_are(registry, id):
    with pytest.raises(UnknownName, match=f"no {registry.kind} is .* are: {registry.ids()[0]}"):
        registry.create(id)


@pytest.mark.parametrize(
    ("typed", "meant"), [("top_k", "topk"), ("ldtebs", "ldte_bs"), ("Ldte", "ldte")]
)
def test_a_misspelt_id_is_answered_with_the_one_that_was_meant(typed, meant):
    with pytest.raises(UnknownName, match=f"did you mean '{meant}'"):
        SELECTORS.create(typed, density=0.1)


def test_missing_and_unknown_options_are_named_with_those_there_are(gadgets):
    words = "unknown option 'color', option 'size' is missing; its options: size, colour, range"
    with pytest.raises(InvalidOption, match=f"'gadget': {words}"):
        gadgets.create("gadget", color="red")


def test_resolve_refuses_what_is_no_part_or_one_of_another_registry(gadgets):
    part = SELECTORS.create("topk", density=0.1)
    for wrong in (None, 3, {}, {"size": 3}, Gadget, object(), part):
        with pytest.raises(UnknownName, match="gadget"):
            gadgets.resolve(wrong)


def test_an_id_is_given_once(gadgets):
    with pytest.raises(InvalidOption, match="gadget 'gadget' is registered twice"):
        gadgets.register("gadget")(Gadget)


@pytest.mark.parametrize("key", papers())
def test_a_paper_is_found_under_the_key_of_its_entry(key):
    entry = papers()[key]
    assert f"{{{key}," in entry.splitlines()[0]
    assert "title" in entry and "year" in entry
    assert entry.count("{") == entry.count("}")


@pytest.mark.parametrize("parts", ALL, ids=lambda r: r.kind)
def test_a_part_names_a_paper_that_is_listed_or_none(parts):
    for part in map(parts.get, parts):
        paper = getattr(part, "paper", None)
        assert paper is None or (paper in papers() and f"Paper: {paper}" in part.__doc__), part


def test_every_error_is_a_sparse_error_and_one_that_python_knows():
    import hvd_sparse.errors as errors

    for cls in vars(errors).values():
        if isinstance(cls, type) and cls is not SparseError:
            assert issubclass(cls, SparseError)
            assert any(
                base.__module__ == "builtins" and base is not object for base in cls.__bases__
            )
