"""Training through Horovod's PyTorch optimizer on real ranks: law 3, groups and plans."""

import _torch_programs
import pytest
from _common import ULP, launched, measured
from _torch_laws import C_MAX, HIDING, WATCHED, WATCHED_STEPS
from _torch_training import SETTINGS, STEPS

from hvd_sparse.plan.measurements import STEPS as MEASURED
from hvd_sparse.plan.measurements import WARMUP

WORLDS = [(1, "mpi"), (2, "gloo"), (3, "mpi")]
TOLERANCE_ULPS = 4
MATRICES_AND_SCALARS = 7
"""Tensors of the network that have an entry."""
PROGRAMS = [name for name in _torch_programs.cases if name != "half_density"]
ADOPTED_AT = WARMUP + MEASURED
REJOINED_AT = ADOPTED_AT + 3


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def outcome(request):
    ranks, controller = request.param
    return launched("frontends/torch_training.py", ranks, controller, "torch", str(ranks))


def test_the_launch_ends_well(outcome):
    outcome.check()


@pytest.mark.parametrize("name", SETTINGS)
def test_density_one_trains_like_dense(outcome, name):
    tolerance = TOLERANCE_ULPS * ULP[SETTINGS[name].dtype]
    for result in measured(outcome, name):
        assert result["difference"] <= tolerance
        if result["members"] > 1:
            assert result["effect"] > 4 * tolerance, (
                "averaging changed nothing, so that the comparison proves nothing"
            )


@pytest.mark.parametrize("name", SETTINGS)
def test_density_one_sends_every_entry_and_nothing_dense(outcome, name):
    setting = SETTINGS[name]
    for result in measured(outcome, name):
        assert result["dense_steps"] == result["dense_bytes"] == 0
        assert result["entries_sent"] == result["nonzeros"]
        assert result["steps"] == (STEPS if result["is_member"] else 0)
        assert result["sparse_steps"] == MATRICES_AND_SCALARS * result["steps"]
        if setting.forward == "static" and setting.dtype in ("float32", "float64"):
            assert result["nonzeros"] == result["numel"]


def test_a_rank_outside_of_the_process_set_has_no_state(outcome):
    for result in (each for name in SETTINGS for each in measured(outcome, name)):
        is_refused = "not in the process set of the compressor" in result["outside"]
        assert is_refused != result["is_member"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_train_like_dense(outcome, name):
    results = measured(outcome, name)
    for result in results:
        assert result["difference"] <= TOLERANCE_ULPS * ULP["float32"]
        assert not any(result["dense_steps"])
    assert len({result["digest"] for result in results}) == 1


COMPRESSED = {
    "sparse_embeddings_untouched": ("head.weight", "head.bias"),
    "embeddings_as_dense": ("first.weight", "second.weight", "head.weight", "head.bias"),
    "groups_of_compressed_and_dense_tensors": ("0.weight", "2.weight"),
}


def test_sparse_and_small_gradients_are_left_alone(outcome):
    for name, tensors in COMPRESSED.items():
        for result in measured(outcome, name):
            assert result["tensors"] == [dict.fromkeys(tensors, _torch_programs.STEPS)]
            assert (result["dense_bytes"][0] > 0) == ("dense_tensors" in name), name


def test_half_density_goes_dense_where_that_is_cheaper(outcome):
    results = measured(outcome, "half_density")
    for result in results:
        if len(results) == 1:
            assert result["dense_steps"] == [0]
        else:
            assert result["dense_steps"] == [6 * _torch_programs.STEPS]
            assert result["difference"] <= TOLERANCE_ULPS * ULP["float32"]


def test_parameters_added_later_join_and_nothing_of_the_others_is_lost(outcome):
    for result in measured(outcome, "parameters_added_later"):
        assert result["lost"] == [0] * 20
        assert result["taken"] == [["later"], ["removed"]]
        assert result["steps"] == {"first": 20, "later": 10}


def test_no_gradient_is_taken_for_another(outcome):
    for result in measured(outcome, "gradients_of_equal_shapes"):
        assert result["swapped"] == []


def test_gradients_zeroed_in_place_make_no_memory_grow(outcome):
    for result in measured(outcome, "gradients_zeroed_in_place"):
        assert len(set(result["tensors"])) == 1, result["tensors"]
        assert result["places"] == [3, 3]


def test_results_that_horovod_resizes_at_once_arrive(outcome):
    results = measured(outcome, "results_are_resized_at_once")
    ranks = len(results)
    from_all = [float(rank + 1) for rank in range(ranks) for _ in range(2)]
    for gathered, reduced, exchanged in results:
        assert gathered == [number for number in from_all for _ in range(ranks)]
        assert reduced == 2 * ranks * [sum(range(1, ranks + 1))]
        assert exchanged == from_all


def test_two_threads_begin_a_bucket_once(outcome):
    results = measured(outcome, "two_threads_begin_a_bucket")
    assert all(result == results[0] for result in results)


def test_groups_that_differ_between_ranks_are_refused(outcome):
    for result in measured(outcome, "other_groups_on_one_rank"):
        alone = result == "nothing was raised" and len(outcome.results) == 1
        assert alone or "ranks were given different groups" in result


def test_a_plan_is_adopted_at_one_step_and_in_a_new_world_and_changes_no_bit(outcome):
    for result in measured(outcome, "planned_makes_no_difference"):
        usual, planned = result["without"], result["planned"]
        assert planned["digests"] == usual["digests"] and planned["alike"]
        assert planned["adopted"] == [ADOPTED_AT, REJOINED_AT + ADOPTED_AT]
        grouped = sorted(key for members in planned["groups"] for key in members)
        assert grouped == sorted(key for members in usual["groups"] for key in members)
        assert len(grouped) == 6, "a tensor is in no bucket, or in two"
        for plan in filter(None, planned["plans"]):
            assert set(plan["predicted_s"]) == {"none", "all", "default", "planned"}
            assert plan["predicted_s"]["planned"] == min(plan["predicted_s"].values())
            assert plan["wire"]["start_s"] > 0


def test_groups_that_are_given_end_measuring_until_it_is_asked_for_again(outcome):
    for result in measured(outcome, "groups_are_given_and_planned_again"):
        assert result["has_plan"] == [
            step >= 2 * ADOPTED_AT for step in range(len(result["has_plan"]))
        ]
        usual, auto = result["refused"]
        assert "groups is 'planned', which can only be chosen before the first step" in usual
        assert "groups is 'planned', and auto measures its ways" in auto


def test_the_ranks_of_a_process_set_plan_for_themselves(outcome):
    results = measured(outcome, "planned_by_members")
    plans = [result["plan"] for result in results if result["is_member"]]
    assert plans
    assert all(plan is not None and plan == plans[0] for plan in plans)
    for result in results:  # steps in the warm-up are dense, and the plan is for those behind it
        if result["is_member"]:
            assert set(result["nbytes"]) == {"wide", "tall", "one", "deep", "small", "bias"}
            assert 4 * 64 <= result["nbytes"]["wide"] <= 12 * 64


def test_watching_changes_no_bit_and_tells_what_was_sent(outcome):
    results = measured(outcome, "watched")
    for result in results:
        assert result["gradients"] == result["plain"]
        for rank in range(len(results)):
            assert f"\n{rank:>4}  " in result["summary"], "a row a rank, on every rank"
    first, *others = results
    assert all(result["records"] == [] for result in others)
    run, *records = [each for each in first["records"] if each["event"] != "metrics"]
    assert run["event"] == "run" and run["world_size"] == len(results)
    assert [each["step"] for each in records] == [1, 2, 4]
    metrics = [each for each in first["records"] if each["event"] == "metrics"]
    assert [(each["step"], each["loss"]) for each in metrics] == [
        (step, 0.5) for step in range(1, WATCHED_STEPS + 1)
    ]
    assert all(set(each["tensors"]) == set(WATCHED) for each in records)


def test_a_summary_is_printed_on_one_rank_alone(outcome):
    name = measured(outcome, "watched")[0]["name"]
    assert outcome.output.count(f"hvd_sparse {name}, since it was made: {WATCHED_STEPS} steps") == 1


def test_an_early_message_is_under_way_while_later_gradients_are_computed(outcome):
    for result in measured(outcome, "timeline"):
        assert result["started_before"] == [True] * WATCHED_STEPS
        counted = {
            f"{what} {whose}"
            for what in ("select", "encode", "exchange", "decode")
            for whose in ("first", "last")
        }
        assert counted <= set(result["spans"])
        assert all(result["spans"][what] == WATCHED_STEPS for what in counted)


def test_all_ranks_send_what_hides_nothing_is_lost_and_a_new_world_measures_anew(outcome):
    for result in measured(outcome, "densities_that_hide"):
        assert not any(result["lost"]) and result["alike"]
        least, asked = 1 / C_MAX, result["asked"]
        assert all(set(asked[step].values()) == {least} for step in range(ADOPTED_AT))
        found = result["found"]["densities"]
        assert sorted(found) == sorted(HIDING)
        assert all(asked[step] == found for step in range(ADOPTED_AT, len(asked)))
        assert all(least <= density <= 1 for density in found.values())
        assert least in found.values(), "nothing is computed behind the last gradient"
        assert result["told"] == {"c_max": C_MAX, "is_measured": True}
        assert "measured densities that hide" in result["summary"]
        assert result["goes_on"] and result["resumed"] == [found, True]  # by the state
        assert not result["is_measured_in_a_new_world"]


def test_states_with_other_densities_are_refused_on_all_ranks(outcome):
    for result in measured(outcome, "other_densities_on_one_rank"):
        alone = result == "nothing was raised" and len(outcome.results) == 1
        assert alone or "the ranks have loaded states with different densities" in result
