"""What both frontends' compressors have in common: names, identity, and states that go on."""

import copy
import gc
import itertools
import math
import operator
import pickle
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, reduce
from types import SimpleNamespace

import cases
import numpy as np
import pytest
import worlds
from compressors import SPECS, NumpyCompressor
from worlds import configure, tensors

from hvd_sparse.errors import CorruptCheckpoint, InvalidOption, RankMismatch
from hvd_sparse.frontend.compressor import Compressor, check_process_set, say_alone
from hvd_sparse.frontend.local_steps import LocalStepsBase
from hvd_sparse.registry import MEMORIES, SELECTORS
from hvd_sparse.state.checkpoint_file import atomic, from_bytes, to_bytes
from hvd_sparse.types import TensorSpec


def test_two_live_compressors_of_one_name_are_refused_with_the_remedies(make):
    """Closing one again does not free the name that another took since."""
    old = make(configure(name="twin"))
    old.close()
    make(configure(name="twin"))
    old.close()
    with pytest.raises(InvalidOption, match=r"compressors have the name 'twin'.*name=.*close\(\)"):
        make(configure(name="twin"))


def local_steps():
    return LocalStepsBase(Compressor, 2, 1.0, 0.0, False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rollback": False}, r"rollback is False.*leave rollback=False out"),
        ({"density": "hiding"}, "density is 'hiding', and local steps send between passes"),
        ({"memory": "momentum_correction"}, "'momentum_correction' .* with error feedback"),
        ({"memory": "adam_correction"}, "'adam_correction' .* with error feedback"),
    ],
)
def test_local_steps_refuse_what_would_lose_or_multiply_the_progress(options, words):
    with pytest.raises(InvalidOption, match=words):
        local_steps()._take(Compressor(configure(**options), "numpy"))


def test_local_steps_take_memories_that_multiply_nothing(make):
    for memory in ({"id": "momentum_correction", "momentum": 0.0}, {"id": "low_pass", "beta": 0.1}):
        local_steps()._take(make(configure(memory=memory)))


def test_local_steps_in_an_elastic_run_are_refused(make, monkeypatch):
    """A worker that joins would wait for a broadcast that the others do not make."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(InvalidOption, match=r"LocalSteps is made in an elastic run"):
        LocalStepsBase(make, 2, 1.0, 0.0, False)


def test_local_steps_refuse_the_state_of_another_compression(make):
    """Horovod's own compressors have no state."""
    with_state, without = local_steps(), local_steps()
    with_state._take(make())
    without._take(object())
    for local, state in ((with_state, None), (without, with_state._state_of_compressor())):
        with pytest.raises(InvalidOption, match="compression of the run that saved the state"):
            local._load_compressor(state)


def test_compressors_of_equal_models_have_names_of_their_own(make):
    """By the order in which they are made, whatever has become of those before, and whether garbage
    was collected or not, which ranks do not do at the same time."""

    def dropped():
        return worlds.run(1, lambda c: NumpyCompressor(c, configure("ldte_bs", 0.1)).name)[0]

    first, second = make(), make()
    second.close()
    again = make()
    assert again.name == second.name
    second.close()
    names = [first.name, again.name, make().name, dropped()]
    gc.collect()
    assert len({*names, dropped(), dropped()}) == 6
    assert make(specs=tensors((30, 4), (10,))).name.partition(".")[0] != first.name


def test_process_sets_have_names_of_their_own():
    places = ("numpy.0", "numpy.1", "numpy.2", "numpy.0")
    made = [Compressor(configure("ldte_bs", 0.1), place, 1) for place in places]
    names = [compressor._naming.take(SPECS) for compressor in made]
    for compressor in made:
        compressor.close()
    assert names == [names[0], f"{names[0]}.set1", f"{names[0]}.set2", f"{names[0]}.1"]


def test_a_given_name_is_free_when_nothing_refers_to_its_compressor_but_itself(make):
    """As compressors are part of circles, Python alone would let go of them some time later."""

    def drop(collective):
        compressor = NumpyCompressor(collective, configure(name="circle"))
        compressor.itself = compressor

    gc.disable()
    try:
        worlds.run(1, drop)
        assert make(configure(name="circle")).name == "circle"
    finally:
        gc.enable()


def test_a_closed_compressor_refuses_all_that_needs_its_state_and_keeps_its_reports(make):
    compressor = make(configure(name="over"))
    compressor.train(range(2))
    state, told = compressor.state_dict(), compressor.stats()
    for _ in range(2):
        compressor.close()
    for use in (
        compressor.state_dict,
        partial(compressor.load_state_dict, state),
        partial(compressor.save, "nowhere"),
        partial(compressor.load, "nowhere"),
        compressor.commit,
        compressor.go_back,
        compressor.rejoin,
    ):
        with pytest.raises(InvalidOption, match=r"'over' is closed.*the state before close\(\)"):
            use()
    assert compressor.stats() == told


def test_compressors_compare_and_hash_by_identity(make):
    """Horovod's TensorFlow cache keys on them."""
    one, other = make(configure(name="one")), make(configure(name="other"))
    assert one == one and one != other and len({one, other}) == 2


def test_in_another_world_compressors_meet_by_the_order_of_their_meetings_there(make):
    """Under any name, and whether another compressor has met or not."""
    closed, one, other, later = (make(configure(name=name)) for name in "abcd")
    first, *others = ordinals_of(closed, other, one)
    assert others == [first + 1, first + 2]
    closed.close()
    assert ordinals_of(one, other, later) == [0, 1, 2]
    assert ordinals_of(one) == [0]  # a worker was lost at once, and all begin again
    assert ordinals_of(one, other, later) == [0, 1, 2]


def ordinals_of(*compressors):
    names = [compressor._meeting_place() for compressor in compressors]
    return [int(name.removeprefix("hvd_sparse.handshake.numpy.")) for name in names]


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_and_copying_are_refused_with_the_remedy(make, take):
    with pytest.raises(InvalidOption, match=r"be pickled or copied: .*state_dict\(\).*from_config"):
        take(make())


def test_repr_stats_and_config_say_what_the_compressor_is(make):
    schedule = {"id": "piecewise", "boundaries": [2], "densities": [1.0, 0.05]}
    compressor = make(configure("ldte_bs", 0.1, name="generator", schedule=schedule))
    parts = ("LdteBs(density=0.1", "ErrorFeedback(residual=", "IndexValue()", "rollback=True")
    for word in ("NumpyCompressor(", *parts, "'generator'"):
        assert word in repr(compressor)
    compressor.train(range(1))
    stats = compressor.stats()
    assert (stats["name"], stats["density_asked"], stats["steps"]) == ("generator", 0.05, 1)
    assert stats["tensors"]["t0"]["density_asked"] == 0.05
    assert compressor.config() == compressor.configuration.describe()


@pytest.mark.parametrize(("elastic", "warnings"), [("", 1), ("1", 0)])
def test_a_world_of_one_that_may_not_grow_is_told_once(monkeypatch, caplog, elastic, warnings):
    monkeypatch.setenv("HOROVOD_ELASTIC", elastic)
    say_alone.cache_clear()
    for world_size in (2, 1, 1):
        check_process_set(SimpleNamespace(process_set_id=0), world_size)
    assert [record.getMessage()[:12] for record in caplog.records] == ["world size 1"] * warnings


def continued():
    """Return configurations with every selector, every memory, and each way of selecting together,
    by name."""
    made = {str(case): configure(case.create(SELECTORS, density=0.1)) for case in cases.SELECTORS}
    for case, rollback in itertools.product(cases.MEMORIES, (True, False)):
        memory = case.create(MEMORIES)
        if memory.reads_parameter:  # see test_handed_optimizers, which has parameters
            continue
        selector = {"id": "sign_vote"} if memory.counts_votes else "topk"
        options = {"memory": memory, "rollback": rollback}
        made[f"{case} {rollback=}"] = configure(selector, 0.1, **options)
    for id in ("topk", "ldte_bs", "redsync_search"):
        made[f"shared_index-{id}"] = configure(id, 0.1, exchange="shared_index")
    return {**made, "group": configure("ldte_bs", 0.1, select_over="group")}


CONTINUED = continued()


@pytest.mark.parametrize("stop", [5, 4], ids=["where rank 1 leads", "where rank 0 leads"])
@pytest.mark.parametrize("name", CONTINUED)
def test_a_run_that_goes_on_from_its_states_is_the_same_bit_for_bit(name, stop):
    """Invariant 35, also on a rank that selects nothing in its first step, as another one leads."""

    def run(stops):
        def script(collective):
            compressor = NumpyCompressor(collective, CONTINUED[name])
            results = compressor.train(range(stops))
            state = from_bytes(to_bytes(compressor.state_dict()))
            compressor.close()
            compressor = NumpyCompressor(collective, CONTINUED[name])
            compressor.load_state_dict(state)
            results += compressor.train(range(stops, 10))
            state = to_bytes(compressor.state_dict())
            compressor.close()
            return results, state

        return worlds.run(2, script)

    assert run(stop) == run(10)


def test_a_state_is_a_copy_that_takes_later_steps_back_also_where_its_engine_is_not_here(make):
    """And with the names that a compiled model had in earlier versions, and has in a program."""
    compressor = make()
    untrained = compressor.state_dict()
    compressor.train(range(2))
    state, expected = compressor.state_dict(), worlds.snapshot(compressor.session)
    kept = pickle.dumps(state)
    compressor.train(range(2, 5))
    assert pickle.dumps(state) == kept
    state["config"].update(engine="unheard_of", timeout_s=1.0)  # as in another run, or rank
    for part in ("model", "tensors"):
        state[part] = {f"_orig_mod.{name}": told for name, told in state[part].items()}
    compressor.load_state_dict(state)
    assert worlds.snapshot(compressor.session) == expected
    compressor.load_state_dict(untrained)
    for steps, _, residual in worlds.snapshot(compressor.session).values():
        assert steps == 0 and not any(residual)


ADDED = TensorSpec("t7", (9, 3), "float32")
RESIDUAL = "tensors t1 arrays residual"
INVALID = "its configuration is not valid in this version"
NO_VECTOR = "its residual of 't1' is not a vector"
DIFFERENT = [
    ("version", 99, "its version is 99, but this version of hvd_sparse reads 2"),
    ("tensors", lambda told: {**told, "other": told["t0"]}, "tensor 'other' is unknown"),
    ("tensors", lambda told: {**told, "t1": told["t0"]}, "'t1' has 120 entries, but the tens"),
    ("config rollback", False, "rollback was False and is True"),
    ("config", lambda told: {**told, **configure("ldte_bs", 0.5).describe()}, "'density': 0.5"),
    ("config selector density", 0.5, INVALID),  # it is not the schedule's
    ("config selector id", "unheard_of", INVALID),
    ("config selector", [[]], INVALID),
    ("config unheard_of", 1, INVALID),
    ("model t1", "[7] float32", "tensor 't1' was [7] float32 and is [9] float32"),
    ("model t2", "[7] float32", "tensor 't2' is no longer there"),
    ("model", lambda told: {"t0": told["t0"]}, "tensor 't1' is new"),
    ("world_size", 2, "it was saved with 2 ranks, and this run has 1: save(path) and load(path)"),
    ("rank", 1, "it was saved on rank 1, and this is rank 0: load each rank's own state"),
    ("tensors t1 arrays", {}, "its residual of 't1' is missing"),
    ("tensors t1 arrays u", np.zeros(9), "its u of 't1' is unknown"),
    (RESIDUAL, lambda r: r[:0], "its residual of 't1' has 0 entries, but the tensor has 9"),
]
OF_A_TENSOR = {
    "steps": ["x", -1, 1.5],
    "threshold": ["0", math.nan],
    "memo": [[[[]]], "x"],
    "selected_in": [3],
    "arrays": [[]],
}
OF_A_STATE = {
    "tensors": [],
    "model": None,
    "config": "x",
    "reduction": "max",
    "references": [math.nan],
    "rank": None,
}
SPOILT = [
    (RESIDUAL, lambda r: r.reshape(3, 3), NO_VECTOR),
    (RESIDUAL, ["x"] * 9, NO_VECTOR),
    (RESIDUAL, [[1.0], [2.0, 3.0]], NO_VECTOR),
    (RESIDUAL, None, NO_VECTOR),
    (RESIDUAL, lambda r: r * np.float32([1, 1, 1, 1, np.nan, 1, 1, 1, 1]), "is nan at entry 4"),
    (RESIDUAL, lambda r: r.astype("f8") + 1e300, "its residual of 't1' is 1e+300 at entry 0"),
    ("tensors t1", None, "tensors is {"),
    *(
        (f"tensors t1 {field}", value, f"{field} of 't1' is {value!r}")
        for field, values in OF_A_TENSOR.items()
        for value in values
    ),
    *((field, value, f"{field} is {value!r}") for field, value in OF_A_STATE.items()),
]


@pytest.mark.parametrize(
    ("place", "value", "words", "error"),
    [
        *((*spoilt, RankMismatch) for spoilt in DIFFERENT),
        *((*spoilt, CorruptCheckpoint) for spoilt in SPOILT),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_lost(make, place, value, words, error):
    compressor = make()
    compressor.train(range(2))
    before = worlds.snapshot(compressor.session)
    assert any(map(any, worlds.residuals(compressor.session).values())), "nothing is to lose"
    state = compressor.state_dict()
    *fields, last = place.split()
    part = reduce(operator.getitem, fields, state)
    part[last] = value(part[last]) if callable(value) else value
    with pytest.raises(error, match=re.escape(words)):
        compressor.load_state_dict(state)
    assert worlds.snapshot(compressor.session) == before


def test_not_strictly_what_both_know_is_taken_and_the_rest_is_told(make, tmp_path):
    old = make()
    old.train(range(2))
    state, expected = old.state_dict(), worlds.snapshot(old.session)
    specs = [SPECS[0], TensorSpec("t7", (9,), "float32")]
    new = make(specs=specs)
    with pytest.raises(RankMismatch, match="'t7' is new; tensor 't1' is no longer there") as raised:
        new.load_state_dict(state)
    assert "strict=False" in str(raised.value)
    with atomic(tmp_path / "file") as stream:
        stream.write(to_bytes(state))
    for load, given in ((new.load_state_dict, state), (new.load, tmp_path / "file")):
        taken = load(given, strict=False)
        assert (taken.missing_keys, taken.unexpected_keys) == (["t7"], ["t1"])
        assert worlds.snapshot(new.session) == {"t0": expected["t0"]}
    other_shape = make(specs=[TensorSpec("t0", (30, 5), "float32")])
    words = r"'t0' was \[30, 4\] float32 and is \[30, 5\] float32.* or train on without the state"
    for strict in (True, False):
        with pytest.raises(RankMismatch, match=words):
            other_shape.load_state_dict(state, strict=strict)


def of_density(density, **options):
    return configure("topk", density, allow_dense=False, min_numel=1, **options)


def by_function(key, shape):
    return 0.1 if key == "t0" else 0.5


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (by_function, by_function),
        ({"*": 0.5, "t0": 0.1, "t1": 0.2}, {"*": 0.5, "t0": 0.1, "t7": 0.3}),
        ({"_orig_mod.t0": 0.1, "*": 0.3}, {"t?": 0.1}),
    ],
    ids=["function", "names", "compiled"],
)
def test_not_strictly_densities_are_compared_for_the_shared_tensors_alone(make, before, after):
    compiled = "" if callable(before) or "t0" in before else "_orig_mod."
    specs = [replace(spec, key=compiled + spec.key) for spec in SPECS]
    old = make(of_density(before), specs)
    new = make(of_density(after), [SPECS[0], ADDED])
    taken = new.load_state_dict(old.state_dict(), strict=False)
    assert (taken.missing_keys, taken.unexpected_keys) == (["t7"], [f"{compiled}t1"])
    denser = make(of_density({"*": 0.5, "t0": 0.2}), [SPECS[0], ADDED])
    with pytest.raises(RankMismatch, match=r"selector was .* and is .*'t0': 0.2"):
        denser.load_state_dict(old.state_dict(), strict=False)


def test_a_tensor_that_was_too_small_to_be_compressed_is_told_by_its_shape(make):
    density = {"t1": 0.1, "t0": 0.1}
    small = replace(SPECS[1], shape=(2, 2))
    old = make(configure("topk", {"t0": 0.1}, min_numel=9), [SPECS[0], small])
    new = make(configure("topk", density, min_numel=9))
    with pytest.raises(RankMismatch, match=r"tensor 't1' was \[2, 2\] float32 and is") as raised:
        new.load_state_dict(old.state_dict(), strict=False)
    assert "not valid" not in str(raised.value)


def test_not_strictly_lists_of_groups_are_compared_only_where_they_change_the_selection(make):
    for over, error in (("tensor", None), ("group", RankMismatch)):
        options = {"select_over": over}
        old = make(of_density(0.1, groups=[["t0", "t1"]], **options))
        old.train(range(2))
        new = make(of_density(0.1, groups=[["t0", "t7"]], **options), [SPECS[0], ADDED])
        with nullcontext() if error is None else pytest.raises(error, match="groups was"):
            new.load_state_dict(old.state_dict(), strict=False)


def test_what_is_no_state_or_lacks_a_field_is_refused(make):
    compressor = make()
    state = compressor.state_dict()
    for wrong in (None, "state", {"0.weight": np.zeros(2)}):
        with pytest.raises(CorruptCheckpoint, match="is no state of a compressor: give the result"):
            compressor.load_state_dict(wrong)
    for field in ("config", "model", "rank", "world_size", "reduction", "tensors"):
        with pytest.raises(CorruptCheckpoint, match=field):
            compressor.load_state_dict({name: state[name] for name in state if name != field})
