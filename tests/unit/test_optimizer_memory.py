"""Which memory an optimizer that is handed over gets, and what cannot be joined with it."""

import pytest
from compressors import Auto, Made, required
from worlds import configure

from hvd_sparse.errors import InvalidOption
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.memories.momentum_feedback import MomentumFeedback
from hvd_sparse.methods import METHODS
from hvd_sparse.optimizer_memory import OF_ADAM, OF_MUON, OF_SGD, Handover, judge
from hvd_sparse.plan.policy import WAYS
from hvd_sparse.selectors.adacomp import AdaComp

SGD = Handover("SGD", OF_SGD)
ADAM = Handover("Adam", OF_ADAM)
MUON = Handover("Muon", OF_MUON)
OTHER = Handover("LAMB", ())


@pytest.mark.parametrize("handover", [SGD, ADAM, MUON], ids=lambda handover: handover.name)
@pytest.mark.parametrize("method", sorted(set(METHODS) - {"terngrad", "signsgd"}))
def test_every_method_with_a_residual_takes_the_optimizers_memory(method, handover):
    made = getattr(Made, method)(None, **required(method), optimizer=handover)
    of_the_paper = method == "dgc" and handover is SGD
    memory = MomentumCorrection if of_the_paper else handover.memories[0]
    assert made.configuration.memory == memory()
    assert made.taken is handover
    config = made.configuration.describe()
    again = Made.from_config("q", config, optimizer=handover, process_set="s")
    assert vars(again) == {**vars(made), "params": "q", "process_set": "s"}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("terngrad", {}),
        ("signsgd", {}),
        ("scalecom", {"density": 0.1, "beta": 0.5}),
        ("topk", {"density": 0.1, "memory": "error_feedback"}),
    ],
)
def test_a_memory_that_cannot_do_the_optimizers_work_is_refused_with_the_remedy(method, options):
    words = r"optimizer=SGD takes 'momentum_feedback' or 'momentum_correction'.*leave out one of"
    with pytest.raises(InvalidOption, match=words):
        getattr(Made, method)(None, **options, optimizer=SGD)


def test_what_the_optimizer_knows_is_left_out_and_the_rest_stays_as_given():
    given = {"id": "momentum_correction", "momentum": 0.1, "masking": False, "clip_norm": 3.0}
    assert SGD.join(given) == MomentumCorrection(masking=False, clip_norm=3.0)
    feedback = {"id": "momentum_feedback", "momentum": 0.1, "clip_norm": 3.0}
    assert SGD.join(feedback) == MomentumFeedback(clip_norm=3.0)
    made = Made.dgc(None, density=0.1, masking=False, clip_norm=3.0, optimizer=SGD)
    assert made.configuration.memory == SGD.join(given)
    made = Made.dgc(None, density=0.1, clip_norm=3.0, optimizer=ADAM)
    assert made.configuration.memory == AdamCorrection(clip_norm=3.0)
    for handover, memory in ((SGD, MomentumCorrection()), (ADAM, AdamCorrection())):
        made = Made.redsync(None, density=0.1, variant="paper", optimizer=handover)
        assert made.configuration.memory == memory


def test_other_optimizers_train_with_error_feedback_and_a_warning(caplog):
    made = Made.topk(None, density=0.1, optimizer=OTHER)
    assert made.configuration.memory == ErrorFeedback()
    assert made.taken is None
    assert made.is_forewarned
    (record,) = caplog.records
    assert record.getMessage().startswith("LAMB: no memory can do this optimizer's work")
    assert "with memory error_feedback." in record.getMessage()


def test_dgc_adds_no_momentum_to_an_optimizer_that_no_memory_knows():
    made = Made.dgc(None, density=0.1, optimizer=OTHER)
    assert made.configuration.memory == ErrorFeedback()
    with pytest.raises(InvalidOption, match=r"clip_norm is 1\.0, and optimizer=LAMB leaves dgc a"):
        Made.dgc(None, density=0.1, clip_norm=1.0, optimizer=OTHER)


LATE = {"id": "piecewise", "boundaries": [10], "densities": [0.5, 0.001]}


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({"density": 0.01}, True),
        ({"density": 0.02}, False),
        ({"density": 0.001, "memory": "momentum_correction"}, False),
        ({"selector": AdaComp()}, False),
        ({"density": 0.5, "schedule": LATE}, True),
    ],
    ids=str,
)
def test_adaptive_steps_are_warned_of_where_entries_will_be_rare(options, is_told, caplog):
    judge(configure(**options), [{"alpha": 0.9}], is_forewarned=False)
    assert len(caplog.records) == int(is_told)


@pytest.mark.parametrize("handover", [SGD, ADAM, MUON], ids=lambda handover: handover.name)
def test_auto_lets_dense_steps_go_through_the_optimizers_memory(handover):
    made = Auto.auto(None, optimizer=handover)
    assert made.configuration.memory == handover.memories[0]()
    assert made.configuration.codec.id == "block16"
    assert made.taken is handover
    assert made._policy.sends_all and made._policy.trial.ways == ("sparse", "dense")


def test_auto_without_an_optimizers_memory_leaves_dense_steps_to_horovod():
    for optimizer in (None, OTHER):
        made = Auto.auto(None, optimizer=optimizer)
        assert not made._policy.sends_all and made._policy.trial.ways == WAYS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": SGD, "ways": ("sparse", "fp16")}, "leave 'fp16' or optimizer= out"),
        ({"memory": "adam_correction"}, "give the optimizer, by optimizer="),
        ({"optimizer": SGD, "groups": "planned"}, "groups is 'planned'"),
        ({"density": "hiding"}, "density is 'hiding', and auto measures its ways"),
        ({"steps": 100}, "optimizer is missing"),
        ({"schedule": {"id": "learning_rate"}}, "there is no optimizer="),
    ],
    ids=str,
)
def test_what_auto_cannot_join_is_refused_with_the_remedy(options, words):
    with pytest.raises(InvalidOption, match=words):
        Auto.auto(None, **options)


@pytest.mark.parametrize("memory", ["momentum_feedback", "adam_correction"])
def test_weight_decay_without_the_parameters_is_refused(memory):
    given = {"id": memory, "weight_decay": 0.1}
    words = f"^memory {memory} with weight_decay 0.1 reads parameters before the exchange, and opt"
    for optimizer in (None, OTHER):
        with pytest.raises(InvalidOption, match=words):
            Made.topk(None, density=0.01, memory=given, optimizer=optimizer)
    handover = SGD if memory == "momentum_feedback" else ADAM
    assert Made.topk(None, density=0.01, memory=given, optimizer=handover).taken is handover
