"""Faults under both frameworks: an error of the project's own on every rank, soon, and no hang."""

import pytest
from _common import check_every_case, launched, measured_of
from harness import launch

import hvd_sparse.errors

WORLDS = [
    (2, "gloo", "torch"),
    (3, "mpi", "torch"),
    (2, "gloo", "tensorflow"),
    (3, "mpi", "tensorflow"),
    (4, "mpi", "tensorflow"),
]
BY_HOROVOD = ("NotImplementedError", "HorovodInternalError: No Adasum operation enabled")
"""Horovod's own words on Adasum: for powers of two alone, and not by Gloo."""
DENSE_AND_LAST = "unknown_first_on_one_rank"
FAULTS = {
    "reduction": (("UnsupportedReduction",), ("hvd.Average", "hvd.Sum")),
    "difference": (("RankMismatch",), ()),
    "process_set": (("RankMismatch", "UnsupportedReduction"), ("process_set",)),
    "unknown": (("PeerFailure", "UnknownGradient"), ()),
    "changed": (("ChangedGradient",), ("call optimizer.synchronize() first", "'1.weight'")),
    "alone": (("RankMismatch",), ()),
    "outlived": (("InvalidOption",), ("gc.collect()",)),
    "converted": (("PeerFailure",), ("UnsupportedInput", "is float64 now, and was float32")),
    "late": (("PeerFailure", "NonFiniteGradient"), ()),
    "again": (("PeerFailure",), ("InvalidOption", "optimizer.skip_synchronize()")),
}
"""By kind: the errors, by class or in the words of TensorFlow's, and what they say."""
OF_TORCH = (*("changed", "converted", "outlived", "alone", "again", "pauses"),)
OF_ONE = {**dict.fromkeys(OF_TORCH, "torch"), "late": "tensorflow"}
"""The framework of the kinds that only one has."""
OWN_ERRORS = {name for name, kind in vars(hvd_sparse.errors).items() if isinstance(kind, type)}


@pytest.fixture(scope="module")
def world(request):
    return request.param


def worlds_of(kind, framework=None):
    framework = framework or OF_ONE.get(kind)
    worlds = [world for world in WORLDS if framework in (None, world[2])]
    # Two ranks have no smaller process set of more than one.
    return [w for w in worlds if kind != "process_set" or w[0] > 2 or w[2] == "torch"]


def in_worlds(*kinds, framework=None):
    """Parametrize a test with the worlds that have a kind of fault, and with the kinds."""
    cases = [(world, kind) for kind in kinds for world in worlds_of(kind, framework)]
    ids = ["-".join(map(str, (*world, kind))) for world, kind in cases]
    return pytest.mark.parametrize(("world", "kind"), cases, ids=ids, indirect=["world"])


def outcome_of(world):
    ranks, controller, framework = world
    return launched("frontends/faults.py", ranks, controller, framework, str(ranks))


def found_in(world, kind):
    return measured_of(outcome_of(world), kind)


def check(said, kinds, words=()):
    assert set(kinds) <= OWN_ERRORS
    assert any(f"{kind}: " in said for kind in kinds), said
    assert all(word in said for word in words), said


@pytest.mark.parametrize("world", WORLDS, ids=lambda w: "-".join(map(str, w)), indirect=True)
def test_every_case_ends_on_every_rank(world):
    check_every_case(outcome_of(world))


@in_worlds(*FAULTS)
def test_a_fault_is_an_error_of_ours_on_every_rank(world, kind):
    for name, results in found_in(world, kind).items():
        if name == DENSE_AND_LAST and world[2] == "torch":
            continue
        for result in results:
            by_horovod = name == "reduction_adasum_later" and result["raised"].startswith(
                BY_HOROVOD
            )
            if result.get("is_member", True) and not by_horovod:
                check(result["raised"], *FAULTS[kind])
            assert result["is_usable"] or by_horovod, name


@in_worlds("unknown", framework="tensorflow")
def test_tensorflows_unknown_gradients_are_refused_with_the_remedy(world, kind):
    for results in found_in(world, kind).values():
        for result in results:
            assert "give the compressor all variables" in result["raised"]


@in_worlds("unknown", framework="torch")
def test_what_one_rank_alone_cannot_place_and_goes_dense_last_fails_there_and_is_right_elsewhere(
    world, kind
):
    """All messages have gone when it comes, and a dense gradient has no carrier: docs/adr/0005."""
    *others, at_fault = found_in(world, kind)[DENSE_AND_LAST]
    check(at_fault["raised"], ("PeerFailure",), ("UnknownGradient",))
    assert {result["raised"] for result in others} == {"nothing was raised"}


@in_worlds("pauses")
def test_nobody_rests_for_long_who_is_waited_for(world, kind):
    """docs/adr/0022: some rank's rest was in vain, and all went on."""
    for results in found_in(world, kind).values():
        assert len({result["digest"] for result in results}) == 1
        assert {steps for result in results for steps in result["steps"]} == {4}
        assert any(skipped for result in results for skipped in result["vain"])


@pytest.mark.parametrize(("framework", "controller"), [("torch", "mpi"), ("tensorflow", "gloo")])
def test_a_rank_that_never_comes_ends_in_a_timeout(framework, controller):
    outcome = launch("frontends/hangs.py", 2, controller, framework, "never_comes")
    waiting, absent = outcome.results
    assert absent == "absent"
    assert "ExchangeTimeout" in (outcome.output if framework == "tensorflow" else "") + str(waiting)
    assert outcome.code not in (0, None)
