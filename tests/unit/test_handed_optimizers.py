"""An optimizer that is handed over: its steps and its state, beside the same one by itself."""

import copy
import gc
import math
import pickle
import weakref
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from muon import paired
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from hvd_sparse.ddp import register
from hvd_sparse.errors import InvalidOption, SparseError
from hvd_sparse.frontend.torch.applying import MOMENTS
from hvd_sparse.frontend.torch.optimizer import STEPS
from hvd_sparse.kernels.torch.vector import DeviceVector
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec

pytestmark = pytest.mark.usefixtures("one_rank")

SGD = partial(torch.optim.SGD, lr=0.02, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=0.02)
MAKERS = {
    "sgd": SGD,
    "nesterov": partial(SGD, nesterov=True),
    "dampened": partial(SGD, dampening=0.5, weight_decay=0.1),
    "climbing": partial(SGD, weight_decay=0.1, maximize=True),
    "adam": partial(torch.optim.Adam, lr=0.02, weight_decay=0.1),
    "adamw": ADAMW,
    "amsgrad": partial(ADAMW, amsgrad=True, maximize=True, betas=(0.9, 0.9)),
    "nadam": partial(torch.optim.NAdam, lr=0.02, weight_decay=0.1),
    "muon": paired,
}
EVERYTHING = {"density": 1.0, "min_numel": 1, "compress_1d": True, "allow_dense": False}
MATRICES = {**EVERYTHING, "compress_1d": False}
NOTHING = {"density": 1.0, "min_numel": 10**6}
WAYS = {
    **dict.fromkeys(("sgd", "nesterov", "dampened", "climbing"), EVERYTHING),
    # at density 1 only what is never compressed is Adam
    **dict.fromkeys(("adam", "adamw", "amsgrad", "nadam"), NOTHING),
    "muon": MATRICES,
}
every_optimizer = pytest.mark.parametrize("name", sorted(MAKERS))


def two_layers():
    return nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 2))


linear = partial(nn.Linear, 8, 6)


class Program:
    rows = 4

    def __init__(
        self, name, handed=None, begun=None, *, first="compressor", make=two_layers, ddp=(), **more
    ):
        torch.manual_seed(0)
        self.model = DistributedDataParallel(make(), **dict(ddp))
        self.optimizer = MAKERS.get(name, name)(self.model.parameters())
        # both are of losses, the factors by step
        self.scaler, self.factors = torch.amp.GradScaler("cpu", enabled=False), {}
        if begun is not None:
            self.model.load_state_dict(begun.model.state_dict())
        if begun is not None and first == "state":
            self.optimizer.load_state_dict(begun.saved())
        self.handle = None
        if handed is not None:
            options = {**handed, **more, "optimizer": self.optimizer}
            self.handle = register(self.model, "topk", **options)
        if begun is not None and first == "compressor":
            self.optimizer.load_state_dict(begun.saved())

    def saved(self):
        return copy.deepcopy(self.optimizer.state_dict())

    def backward(self, step, model=None):
        draw = torch.Generator().manual_seed(step)
        inputs = torch.randn(self.rows, 8, generator=draw)
        loss = (model or self.model)(inputs).square().mean() * self.factors.get(step, 1.0)
        self.scaler.scale(loss).backward()

    def train(self, steps, changes=None, *, model=None, between=lambda: None):
        for step in steps:
            if changes and step in changes:
                changes[step](self.optimizer)
            self.optimizer.zero_grad()
            self.backward(step, model)
            between()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return self


CORRECTED = {"memory": {"id": "momentum_correction", "masking": False}}


def assert_same_bits(one, other):
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))


def assert_same(one, other):
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)


def with_a_matrix_of_adam(parameters):
    optimizer = paired(parameters)
    adam, muon = optimizer.param_groups
    adam["params"].append(muon["params"].pop())
    return optimizer


@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in sorted(MAKERS)),
        ("dampened", CORRECTED),
        (with_a_matrix_of_adam, {}),
        (partial(SGD, momentum=0.0), {}),
    ],
)
def test_the_bytes_of_the_state_are_known_before_the_first_step(name, more, rollback, caplog):
    handed = {**EVERYTHING, "density": 0.25, "rollback": rollback}
    with caplog.at_level("INFO", "hvd_sparse"):
        ours = Program(name, handed, **more)
    told = ours.handle.footprint()["state_bytes"]
    assert f"will keep at most {told} bytes" in caplog.text
    ours.train(range(2))
    versions = 2 if rollback else 1
    arrays = [
        (array, 1 if name == "sent_in" else versions)
        for state in ours.handle.step.transactions.settle_all().values()
        for name, array in state.memory.arrays().items()
    ]
    assert told == sum(array.nbytes * count for array, count in arrays)


def set_all(**options):
    def change(optimizer):
        for group in optimizer.param_groups:
            group.update(options)

    return change


@every_optimizer
@pytest.mark.parametrize("first", ["state", "compressor"])
def test_moments_that_an_optimizer_has_are_taken_over(name, first):
    begun = Program(name).train(range(6))
    ours = Program(name, WAYS[name], begun, first=first).train(range(6, 12))
    assert_same(ours, begun.train(range(6, 12)))


@pytest.mark.parametrize(
    ("name", "more"), [*((name, {}) for name in sorted(MAKERS)), ("dampened", CORRECTED)]
)
def test_a_plain_optimizer_goes_on_from_the_state(name, more):
    begun = Program(name, WAYS[name], **more).train(range(6))
    plain = Program(name, None, begun).train(range(6, 12))
    assert_same(plain, Program(name).train(range(12)))


@pytest.mark.parametrize(
    ("name", "factor", "on_nonfinite", "words"),
    [
        ("sgd", math.inf, "raise", "NaN or Inf"),
        # Adam's second moment overflows, but no gradient does.
        ("adamw", 1e22, "propagate", "leaves the range of float32"),
    ],
)
def test_after_an_error_that_ranks_raise_the_optimizer_may_step(name, factor, on_nonfinite, words):
    ours = Program(name, EVERYTHING, on_nonfinite=on_nonfinite).train(range(3))
    ours.optimizer.zero_grad()
    ours.factors[3] = factor
    with pytest.raises(SparseError, match=words):
        ours.backward(3)
    ours.factors.clear()
    assert not any(parameter.grad.any() for parameter in ours.model.parameters())
    ours.optimizer.step()
    ours.train(range(3, 6))
    assert all(parameter.isfinite().all() for parameter in ours.model.parameters())


def test_parameters_that_move_to_another_group_get_its_settings():
    def freeze_first(optimizer):
        first, *others = optimizer.param_groups[0]["params"]
        optimizer.param_groups[0]["params"] = others
        optimizer.add_param_group({"params": [first], "lr": 0.0})

    def unfreeze(optimizer):
        optimizer.param_groups[0]["params"] += optimizer.param_groups[1]["params"]
        del optimizer.param_groups[1]

    changes = {0: freeze_first, 3: unfreeze}
    ours = Program("sgd", WAYS["sgd"]).train(range(8), changes)
    assert_same(ours, Program("sgd").train(range(8), changes))


@pytest.mark.parametrize("first", ["state", "compressor"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {"density": d}) for name in sorted(MAKERS) for d in (0.05, 0.5)),
        ("sgd", {"density": 1.0}),
        ("sgd", {"density": 0.05, **CORRECTED}),
    ],
)
def test_a_state_that_goes_back_changes_no_bit_also_beside_the_optimizers_of_rank_0(
    name, more, first
):
    handed = {**EVERYTHING, **more}
    ours = Program(name, handed).train(range(6))
    of_rank_0, compressor = ours.saved(), ours.handle.state_dict()
    for state in of_rank_0["state"].values():
        state.update({key: 2 * state[key] for key in MOMENTS if key in state})
    model = DistributedDataParallel(copy.deepcopy(ours.model.module))
    begun = SimpleNamespace(model=model, saved=lambda: of_rank_0)
    again = Program(name, handed, begun, first=first)
    again.handle.load_state_dict(compressor)
    assert not any(STEPS in group for group in again.optimizer.param_groups)
    assert_same_bits(again.train(range(6, 12)), ours.train(range(6, 12)))


@every_optimizer
@pytest.mark.parametrize("density", [0.05, 0.5])
def test_a_sparse_compressors_state_has_all_that_the_optimizer_itself_asks_for(name, density):
    begun = Program(name, {**EVERYTHING, "density": density}).train(range(6))
    names = {key for state in begun.saved()["state"].values() for key in state}
    plain = Program(name).train(range(1))
    assert names == {key for state in plain.saved()["state"].values() for key in state}
    Program(name, None, begun).train(range(6, 8))


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, inputs):
        return self.used(inputs)


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_parameters_that_no_rank_uses_do_not_delay_the_state_of_the_others(option):
    options = {"make": HalfUsed, "ddp": {option: True}}
    both = (Program("sgd", handed, **options).train(range(3)) for handed in (EVERYTHING, None))
    saved = (each.saved()["state"].values() for each in both)
    for ours, plain in zip(*saved, strict=True):
        torch.testing.assert_close(ours["momentum_buffer"], plain["momentum_buffer"])


def replace(optimizer):
    optimizer.state = defaultdict(dict)


@every_optimizer
@pytest.mark.parametrize("clear", [lambda optimizer: optimizer.state.clear(), replace])
def test_a_state_that_is_cleared_begins_anew(name, clear):
    ours = Program(name, WAYS[name]).train(range(12), {6: clear})
    plain = Program(name).train(range(12), {6: clear})
    assert_same(ours, plain)


@every_optimizer
def test_a_result_may_be_thrown_away_when_the_state_was_asked_for_before(name):
    """As a program does that saves its checkpoint on one rank, and skips the batch."""
    handed = {**EVERYTHING, "density": 0.1}
    ours, whole = Program(name, handed).train(range(4)), Program(name, handed).train(range(8))
    before = ours.saved()
    ours.optimizer.zero_grad()
    ours.model(torch.ones(4, 8)).sum().backward()
    during = ours.saved()
    for index, state in before["state"].items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(during["state"][index][key]), torch.as_tensor(value))
    assert_same_bits(ours.train(range(4, 8)), whole)


@every_optimizer
def test_a_state_that_is_saved_before_the_optimizers_step_is_that_of_the_weights(name):
    handed = {**EVERYTHING, "density": 0.1}
    ours, saved = Program(name, handed).train(range(4)), []

    def save():
        saved[:] = copy.deepcopy([ours.model.state_dict(), ours.handle.state_dict(), ours.saved()])

    ours.train([4], between=save).train(range(5, 8))
    begun = SimpleNamespace(
        model=SimpleNamespace(state_dict=lambda: saved[0]), saved=lambda: saved[2]
    )
    again = Program(name, handed, begun)
    again.handle.load_state_dict(saved[1])
    assert_same_bits(ours, Program(name, handed).train(range(8)))
    assert_same_bits(ours, again.train(range(4, 8)))


def test_a_state_that_is_saved_in_a_hook_behind_the_optimizers_step_has_this_step():
    ours, steps = Program("adamw", {**EVERYTHING, "density": 0.1}), []

    def save(*_):
        tensors = ours.handle.state_dict()["tensors"].values()
        steps.append({each["steps"] for each in tensors})

    ours.optimizer.register_step_post_hook(save)
    ours.train(range(3))
    assert steps == [{1}, {2}, {3}]


def test_without_rollback_a_state_is_refused_before_the_optimizers_step():
    ours = Program("adamw", EVERYTHING, rollback=False)

    def save():
        with pytest.raises(InvalidOption, match=r"'0\.weight', and with rollback=False .* after o"):
            ours.handle.state_dict()

    ours.train(range(2), between=save)
    assert {each["steps"] for each in ours.handle.state_dict()["tensors"].values()} == {2}
    ours.optimizer.zero_grad()
    ours.backward(2)
    ours.optimizer.zero_grad()
    ours.handle.state_dict()  # no optimizer can apply the result any more


@every_optimizer
@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_goes_on_by_itself(name, copy_of):
    ours = Program(name, WAYS[name]).train(range(6))
    copied = copy_of(ours.optimizer)
    plain = Program(name, None, ours)
    for group, others in zip(plain.optimizer.param_groups, copied.param_groups, strict=True):
        for p, q in zip(group["params"], others["params"], strict=True):
            assert set(copied.state[q]) == set(plain.optimizer.state[p])
            for key, value in plain.optimizer.state[p].items():
                assert torch.equal(torch.as_tensor(copied.state[q][key]), torch.as_tensor(value))


@pytest.mark.parametrize("name", ["sgd", "nesterov"])
@pytest.mark.parametrize("memory", ["momentum_feedback", CORRECTED["memory"]], ids=str)
def test_settings_that_change_at_any_step_are_the_optimizers(name, memory):
    momenta = (0.9, 0.5, 0.8) if name == "nesterov" else (0.9, 0.0, 0.9, 0.5)
    changes = {
        step: set_all(momentum=momenta[step % len(momenta)], weight_decay=(0.1, 0, 0.3)[step // 4])
        for step in range(12)
    }
    ours = Program(name, WAYS[name], memory=memory).train(range(12), changes)
    assert_same(ours, Program(name).train(range(12), changes))


@pytest.mark.parametrize("memory", ["momentum_feedback", "momentum_correction"])
def test_a_compressor_takes_its_own_state_back_whatever_the_optimizers_settings(memory):
    handed = {**EVERYTHING, "density": 0.05, "memory": memory}
    begun = Program("sgd", handed)
    begun.train(range(4), {2: set_all(weight_decay=0.1), 3: set_all(momentum=0.85)})
    state = begun.handle.state_dict()
    begun.handle.load_state_dict(state)
    resumed = Program("sgd", handed, begun, first="state")
    resumed.handle.load_state_dict(state)


@pytest.mark.parametrize(
    "memory", ["momentum_correction", "momentum_feedback", "adam_correction", "muon_correction"]
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_moments_that_lie_on_a_device_are_copied_to_the_host(memory, decay):
    options = {} if memory == "muon_correction" else {"weight_decay": decay}
    state = MEMORIES.create(memory, **options).create(
        TensorSpec("t", (6, 4), "float32"), rollback=True
    )
    state.move(lambda size, dtype: DeviceVector(torch.zeros(size)))
    arrays = state.moments(1, 2).arrays
    assert arrays
    assert all(isinstance(array, np.ndarray) for array in arrays.values())


def test_a_state_of_sgd_without_its_count_brings_the_bits_of_one_with_it():
    """As Horovod's broadcast from a rank that has loaded its checkpoint alone."""
    handed = {"density": 0.5, "min_numel": 20, "allow_dense": False}
    begun = Program("sgd", handed).train(range(4))
    state, counted = begun.handle.state_dict(), begun.saved()
    uncounted = copy.deepcopy(counted)
    assert [group.pop(STEPS) for group in uncounted["param_groups"]] == [[4, 0, 0, 0]]
    earlier = {**uncounted, STEPS: {0: 4}}  # as earlier versions counted
    ends = []
    for saved in (counted, uncounted, earlier):
        resumed = Program("sgd", handed)
        resumed.model.load_state_dict(begun.model.state_dict())
        resumed.optimizer.load_state_dict(copy.deepcopy(saved))  # torch trains in its tensors
        resumed.handle.load_state_dict(state)
        resumed.train(range(4, 8))
        ends.append(list(resumed.model.parameters()))
    for end in ends[1:]:
        assert all(map(torch.equal, ends[0], end))


def test_a_state_with_an_option_that_no_memory_knows_is_refused():
    ours, state = Program("adamw", WAYS["adamw"]), Program("adamw").saved()
    state["param_groups"][0]["differentiable"] = True
    with pytest.raises(InvalidOption, match="the optimizer has differentiable"):
        ours.optimizer.load_state_dict(state)
    ours.train(range(1))


def test_an_optimizer_that_another_compressor_has_is_refused():
    first, second = (DistributedDataParallel(nn.Linear(4, 4)) for _ in range(2))
    optimizer = SGD([*first.parameters(), *second.parameters()])
    held = register(first, "topk", density=0.1, optimizer=optimizer)
    with pytest.raises(InvalidOption, match=r"SGD that .* belongs to .* for tensor 'weight': make"):
        register(second, "topk", density=0.1, optimizer=optimizer)
    held.close()
    second = DistributedDataParallel(second.module)
    register(second, "topk", density=0.1, optimizer=optimizer)


@every_optimizer
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_second_compressor_goes_on_from_the_moments_of_the_first(name, is_closed):
    ours, plain = Program(name, WAYS[name]).train(range(6)), Program(name).train(range(12))
    first = ours.handle
    if is_closed:
        first.close()
    ours.model = DistributedDataParallel(ours.model.module)
    options = {**WAYS[name], "optimizer": ours.optimizer, "name": "second"}
    ours.handle = register(ours.model, "topk", **options)
    assert_same(ours.train(range(6, 12)), plain)


def test_a_scheduler_of_the_plain_optimizer_works_after_horovods_optimizer_has_loaded():
    plain = Program("sgd", EVERYTHING).optimizer
    schedule = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
    horovods = type(plain)(plain.param_groups, lr=0.0)
    saved = horovods.state_dict()
    saved["param_groups"][0]["lr"] = 0.5
    horovods.load_state_dict(saved)
    assert plain.param_groups[0]["lr"] == 0.5
    plain.step()
    schedule.step()
    assert horovods.param_groups[0]["lr"] == 0.25


def test_a_compressor_does_not_keep_horovods_optimizer_alive():
    """As long as that exists, its hooks stay on the parameters, and no other can be made."""
    ours = Program("sgd", EVERYTHING)
    plain, held = ours.optimizer, ours.handle
    horovods = type(plain)(plain.param_groups, lr=0.0)
    held._follower.meet(horovods)
    assert held._follower._optimizer is horovods
    here = weakref.ref(horovods)
    del horovods
    gc.collect()
    assert here() is None and held._follower._optimizer is plain


def test_weight_decay_reads_the_memory_that_a_parameter_has_now():
    def move(optimizer):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.data = 2 * parameter.data

    changes = dict.fromkeys(range(4), move)
    ours = Program("dampened", EVERYTHING).train(range(4), changes)
    assert_same(ours, Program("dampened").train(range(4), changes))


def test_the_optimizer_alone_keeps_the_moments_of_tensors_that_are_never_compressed():
    ours = Program("adamw", {"density": 0.5, "min_numel": 20, "allow_dense": False}).train(range(2))
    assert set(ours.handle.state_dict()["tensors"]) == {"0.weight"}
    for name, parameter in ours.model.module.named_parameters():
        held = ours.optimizer.state[parameter]
        assert held["step"] == 2
        assert ("exp_avg_sq" in held) == (name != "0.weight")


def test_muons_reference_can_be_derived_from_after_a_scheduler_has_written_to_its_groups():
    optimizer = Program("muon", WAYS["muon"]).optimizer
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    derived = type("Muon", (type(optimizer),), {})(optimizer.param_groups)  # as Horovod does
    assert derived.param_groups == optimizer.param_groups
    assert all("initial_lr" in group for group in derived.param_groups)


def test_a_default_dtype_of_16_bits_does_not_round_the_number_of_steps():
    torch.set_default_dtype(torch.bfloat16)
    try:
        program = Program("adamw", {**EVERYTHING, "density": 0.5})
        program.train(range(1))
        steps = [state["step"].dtype for state in program.saved()["state"].values()]
    finally:
        torch.set_default_dtype(torch.float32)
    assert set(steps) == {torch.float32}


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_torchs_own_muon_is_taken_over_and_goes_on_from_its_state(monkeypatch):
    monkeypatch.setattr(Program, "rows", 32)
    muon = partial(torch.optim.Muon, lr=0.01, weight_decay=0.1)
    start, ours, plain = (
        Program(muon, handed, make=partial(nn.Linear, 8, 6, bias=False))
        for handed in (None, EVERYTHING, None)
    )
    moments = [
        each.train(range(6)).saved()["state"][0]["momentum_buffer"] for each in (ours, plain)
    ]
    assert (moments[0] - moments[1]).abs().max() < 0.02 * moments[1].abs().max()
    ours = Program(muon, None, ours, make=partial(nn.Linear, 8, 6, bias=False))
    ends = [each.train(range(6, 12)).model.module.weight for each in (ours, plain)]
    moved = (ends[1] - start.model.module.weight).abs().max()
    assert (ends[0] - ends[1]).abs().max() < 0.02 * moved


# -- steps ----------------------------------------------------------------------------------------


@every_optimizer
def test_a_model_that_is_trained_without_ddp_is_trained_by_the_optimizer(name):
    both = Program(name, NOTHING), Program(name)
    assert_same(*(each.train(range(5), model=each.model.module) for each in both))


@pytest.mark.parametrize("passed_by", ["module", "no_sync", "frozen"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_gradient_that_passes_the_compressor_by_is_refused(passed_by, set_to_none):
    ours = Program("sgd", NOTHING, make=linear)
    for step in range(2):
        ours.optimizer.zero_grad(set_to_none)
        ours.backward(step)
        ours.optimizer.step()
    before = [p.detach().clone() for p in ours.model.parameters()]
    ours.optimizer.zero_grad(set_to_none)
    if passed_by == "module":
        ours.backward(2, ours.model.module)
    elif passed_by == "no_sync":
        with ours.model.no_sync():
            ours.backward(2)
    else:  # DDP waits for the gradient of the bias, and reduces nothing
        ours.model.module.bias.requires_grad_(False)
        ours.backward(2)
    words = r"'weight' has a gradient that.*not through its \.mod.*find_unused_parameters=True"
    with pytest.raises(InvalidOption, match=words):
        ours.optimizer.step()
    assert all(map(torch.equal, ours.model.parameters(), before))


FUSED = [partial(make, fused=True) for make in (SGD, ADAMW)]


@pytest.mark.parametrize("make", [*sorted(MAKERS), *FUSED])
def test_a_scaler_unscales_and_skips_whether_the_optimizer_is_fused_or_not(make):
    both = []
    for handed in (NOTHING, None):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        both.append(Program(make, handed, grad_scaler=scaler))
        both[-1].scaler, both[-1].factors = scaler, {2: torch.inf}
        both[-1].train(range(5))
        assert scaler.get_scale() == 2.0**15, "one step was skipped"
    assert_same(*both)


def test_step_hooks_are_called_once_a_step():
    called = []

    def hooked(parameters):
        optimizer = ADAMW(parameters)
        optimizer.register_step_pre_hook(lambda *_: called.append("pre"))
        optimizer.register_step_post_hook(lambda *_: called.append("post"))
        return optimizer

    of_all = register_optimizer_step_post_hook(lambda *_: called.append("global"))
    Program(hooked, NOTHING).train(range(2))
    of_all.remove()
    assert called == ["pre", "post", "global"] * 2


def test_clipping_what_came_back_and_an_unknown_scaler_are_told_once_with_the_remedy(caplog):
    """And nothing is told where results are applied as they came."""

    def said(most=None, scaler=None, **options):
        caplog.clear()
        ours = Program("adamw", MATRICES, make=linear, **options)
        ours.scaler, ours.factors = scaler or ours.scaler, {0: 0.0}
        clip = partial(nn.utils.clip_grad_norm_, list(ours.model.parameters()), most)
        ours.train(range(3), between=(lambda: None) if most is None else clip)
        return list(caplog.messages)

    (text,) = said(0.1)
    assert text.startswith("gradients were multiplied by 0.0") and "updates of AdamW" in text
    assert "clip_grad_norm=1.0" in text
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    (text,) = said(scaler=scaler)
    assert text.startswith("gradients were multiplied by 0.000976562 ")
    assert "grad_scaler=scaler" in text
    assert said(1e3) == said(scaler=scaler, grad_scaler=scaler) == []


DECAYING = partial(SGD, weight_decay=0.1)


@pytest.mark.parametrize(("name", "count"), [(DECAYING, 1), ("adam", 1), ("adamw", 0)])
def test_weight_decay_of_weights_that_moved_before_the_step_is_told_once(name, count, caplog):
    ours = Program(name, MATRICES, make=linear)
    for step in range(4):
        for move in (0.05, -0.05) if step else (0.0,):
            ours.optimizer.zero_grad()
            ours.backward(step)
            with torch.no_grad():
                for parameter in ours.model.parameters() if move else ():
                    parameter.add_(move)
        ours.optimizer.step()
        assert step or not caplog.messages
    told = [text for text in caplog.messages if "its weight decay of 0.1" in text]
    assert len(told) == count
    assert not told or "use AdamW" in told[0]


@pytest.mark.parametrize(
    ("sent", "applied", "count"), [(0.0, 0.1, 1), (0.1, 0.0, 1), (0.0, 0.0, 0), (0.1, 0.2, 0)]
)
def test_a_learning_rate_of_0_in_the_backward_pass_or_in_the_step_alone_is_told_once(
    sent, applied, count, caplog
):
    ours = Program("sgd", MATRICES, make=linear)
    ours.train(
        range(3),
        dict.fromkeys(range(3), set_all(lr=sent)),
        between=lambda: set_all(lr=applied)(ours.optimizer),
    )
    told = [text for text in caplog.messages if "set the rate before backward()" in text]
    assert len(told) == count
    words = f"the learning rate of 'weight' was {sent:g} in the backward pass and is {applied:g}"
    assert not told or told[0].startswith(words)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_schedule_may_be_made_before_the_compressor_or_behind_it(name):
    schedules = []

    def scheduled(parameters):
        optimizer = MAKERS[name](parameters)
        schedules.append(CosineAnnealingLR(optimizer, 5))
        return optimizer

    before, plain, behind = Program(scheduled, NOTHING), Program(scheduled), Program(name, NOTHING)
    schedules.append(CosineAnnealingLR(behind.optimizer, 5))
    for program, schedule in zip((before, plain, behind), schedules):
        for step in range(5):
            program.train([step])
            schedule.step()
    assert_same_bits(before, behind)
    assert_same(before, plain)


def test_an_optimizer_of_other_parameters_or_with_a_replaced_step_is_refused():
    plain, other = Program("sgd", make=linear), Program("sgd", make=linear)
    with pytest.raises(InvalidOption, match=r"'weight' is in none of the optimizer's"):
        register(other.model, "topk", **NOTHING, optimizer=plain.optimizer)
    assert type(plain.optimizer) is torch.optim.SGD
    plain.optimizer.step = plain.optimizer.step
    with pytest.raises(InvalidOption, match="was replaced on the object"):
        register(plain.model, "topk", **NOTHING, optimizer=plain.optimizer)


def test_an_optimizer_whose_compressor_is_closed_takes_no_steps_without_its_moments():
    ours = Program("adam", MATRICES).train(range(1))
    ours.handle.close()
    with pytest.raises(InvalidOption, match=r"closed.*load optimizer.state_dict\(\) into it"):
        ours.train([1], model=ours.model.module)
    plain = MAKERS["adam"](ours.model.parameters())
    plain.load_state_dict(ours.optimizer.state_dict())
    assert all(state["step"] == 1 for state in plain.state.values())
    plain.step()
