"""Worker: training with Horovod's optimizer, and law 3: at density 1.0 training equals dense
Horovod, for every pair of choices. Arguments: the framework, and the number of ranks."""

import copy
import os
import sys
from functools import partial

import _laws
import _torch_laws
import _torch_optimizers
import _torch_programs
import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, ULP, caught, reduction_of
from _pairwise import covering_settings
from _torch_cases import begin, flat_parameters, run
from torch import nn

from hvd_sparse.torch import Compression

STEPS = 4
TOLERANCE_ULPS = 4
TENSORS = 7
"""Tensors of the network that have an entry."""
FACTORS = {
    "reduction": ("average", "sum", "predivide"),
    "grouping": ("single", "num_groups", "explicit"),
    "passes": (1, 2),
    "members": ("all", "one_left_out"),
    "zeroing": ("to_none", "to_zero"),
    "dtype": ("float32", "float64", "float16", "bfloat16"),
    "layout": ("contiguous", "transposed", "channels_last"),
    "forward": ("static", "dynamic"),
    "method": ("ldte_bs", "topk"),
}


class Network(nn.Module):
    """A network with a convolution, matrices, a scalar, an empty tensor, and a branch that only
    some steps use.

    It uses tanh, because ReLU would give gradients that are exactly zero.
    """

    def __init__(self, layout="contiguous"):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3)
        self.head = nn.Linear(64, 6)
        self.branch = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        if layout == "channels_last":
            self.to(memory_format=torch.channels_last)
        if layout == "transposed":
            self.head.weight = nn.Parameter(self.head.weight.detach().t().contiguous().t())

    def forward(self, images, takes_branch):
        hidden = self.head(torch.tanh(self.convolution(images)).flatten(1)) * self.scale
        return (self.branch(torch.tanh(hidden)) if takes_branch else hidden) + self.empty.sum()


def make_network(setting):
    torch.manual_seed(11)
    return Network(setting.layout).to(getattr(torch, setting.dtype))


def descent(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)


def distributed(model, setting, compression, process_set):
    options = reduction_of(hvd, setting.reduction)
    group = [model.convolution.weight, model.head.weight, model.scale]
    options |= {"single": {}, "num_groups": {"num_groups": 3}, "explicit": {"groups": [group]}}[
        setting.grouping
    ]
    return hvd.DistributedOptimizer(
        descent(model),
        named_parameters=model.named_parameters(),
        compression=compression,
        backward_passes_per_step=setting.passes,
        process_set=process_set,
        **options,
    )


def accumulate_gradients(model, setting, step):
    dtype = getattr(torch, setting.dtype)
    # Horovod's groups want the same parameters on all ranks; without groups, ranks take the branch
    # in turn
    turn = step + (hvd.rank() if setting.grouping == "single" else 0)
    for number in range(setting.passes):
        draw = torch.Generator().manual_seed(1000 * hvd.rank() + 10 * step + number)
        images = torch.randn(8, 2, 6, 6, generator=draw).to(dtype)
        targets = torch.randn(8, 6, generator=draw).to(dtype)
        takes_branch = setting.forward == "static" or (turn + number) % 3 != 0
        ((model(images, takes_branch) - targets) ** 2).mean().backward()


def train(model, setting, optimizer, *, by_hand=None):
    for step in range(STEPS):
        model.zero_grad(set_to_none=setting.zeroing == "to_none")
        accumulate_gradients(model, setting, step)
        if by_hand is not None and by_hand.included():
            reduce_by_hand(model, setting, by_hand)
        optimizer.step()


def reduce_by_hand(model, setting, process_set):
    op = hvd.Sum if setting.reduction == "sum" else hvd.Average
    wide = torch.float64 if setting.dtype == "float64" else torch.float32
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dense = gradient.to(wide).contiguous(memory_format=torch.contiguous_format)
        reduced = hvd.allreduce(dense, op=op, name=f"by_hand.{name}", process_set=process_set)
        parameter.grad = torch.empty_like(parameter).copy_(reduced)


def train_dense(start, setting, process_set):
    model = copy.deepcopy(start)
    if setting.dtype == "bfloat16" or setting.layout != "contiguous":  # Horovod reduces neither
        train(model, setting, descent(model), by_hand=process_set)
    else:
        train(model, setting, distributed(model, setting, hvd.Compression.none, process_set))
    return model


def train_alone(start, setting):
    model = copy.deepcopy(start)
    train(model, setting, descent(model))
    return model


SETTINGS = {str(setting): setting for setting in covering_settings(FACTORS)}


def compare_with_dense(name, process_sets):
    setting = SETTINGS[name]
    process_set = process_sets[setting.members]
    start = make_network(setting)
    model = copy.deepcopy(start)
    compressor = getattr(Compression, setting.method)(
        model.named_parameters(), density=1.0, process_set=process_set, name=name, **SPARSE_ONLY
    )
    train(model, setting, distributed(model, setting, compressor, process_set))
    stats = compressor.stats()
    if not process_set.included():  # takes no part
        compressor.save(f"{name}.states")
        compressor.load(f"{name}.states")
        said = caught(compressor.state_dict)
        assert "not in the process set of the compressor" in said, said
    compressor.close()
    dense = flat_parameters(train_dense(start, setting, process_set))
    tolerance = TOLERANCE_ULPS * ULP[setting.dtype] * max(1.0, float(dense.abs().max()))
    difference = float((flat_parameters(model) - dense).abs().max())
    assert difference <= tolerance, (difference, tolerance)
    if process_set.included() and process_set.size() > 1:
        effect = float((flat_parameters(train_alone(start, setting)) - dense).abs().max())
        assert effect > 4 * tolerance, "averaging changed nothing: the comparison proves nothing"
    steps = STEPS if process_set.included() else 0
    assert (stats["steps"], stats["sparse_steps"]) == (steps, TENSORS * steps), stats
    assert stats["dense_steps"] == stats["dense_bytes"] == 0, stats
    if setting.forward == "static" and setting.dtype in ("float32", "float64"):
        assert stats["entries_sent"] == stats["entries_total"], stats


if __name__ == "__main__":
    ranks = int(sys.argv[2])
    process_sets = begin(ranks)
    some = process_sets.setdefault("one_left_out", process_sets["all"])
    cases = {
        **{name: partial(compare_with_dense, process_sets=process_sets) for name in SETTINGS},
        **_torch_programs.cases,
        **_torch_laws.laws,
        **_laws.AUTO,
        "planned_by_members": partial(_laws.planned_by_members, process_sets=process_sets),
        **_laws.PLANNED,
    }
    if ranks == 1:  # a single rank's optimizer calls its compressor only then
        os.environ["HOROVOD_ELASTIC"] = "1"
    if ranks > 1:
        cases |= _laws.cases
    if ranks == 2:
        alone = partial(_torch_optimizers.in_a_set_of_one_rank, process_set=some)
        cases |= {**_torch_optimizers.cases, "in_a_set_of_one_rank": alone}
    run(cases)
