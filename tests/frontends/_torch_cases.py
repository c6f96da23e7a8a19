"""Tools of PyTorch for cases of both frameworks. ``_tensorflow_cases`` has the same names."""

import sys

import _common
import horovod.torch as hvd
import torch
from _common import run_cases
from _tensors import digest_of, flat_parameters, give_gradients
from torch import nn

from hvd_sparse.torch import Compression, LocalSteps

__all__ = ["Compression", "LocalSteps", "digest_of", "flat_parameters", "give_gradients", "hvd"]

COMPRESSES_1D = False
"""``compress_1d`` in cases of faults: vectors are sent dense, and matrices are compressed."""


def begin(ranks=0):
    torch.set_num_threads(1)
    process_sets = {"all": hvd.global_process_set}
    if ranks > 1:
        process_sets["one_left_out"] = hvd.ProcessSet(list(range(ranks - 1)))
        hvd.init(process_sets=[process_sets["one_left_out"]])
    else:
        hvd.init()
    return process_sets


def run(cases):
    torch.set_num_threads(1)
    run_cases(cases, hvd.rank(), hvd.barrier)
    hvd.shutdown()


def last_rank():
    return hvd.rank() == hvd.size() - 1


def summed(array, name):
    wide = torch.as_tensor(array).double().contiguous()
    return hvd.allreduce(wide, op=hvd.Sum, name=f"test.{name}")


def make_variables(shapes, dtypes=None):
    dtypes = dtypes or ["float32"] * len(shapes)
    return {
        key: nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)))
        for (key, shape), dtype in zip(shapes.items(), dtypes)
    }


def params_of(variables):
    return variables.items()


def distributed(name, model, optimizer, compression, **options):
    """Return Horovod's optimizer for a module or a dictionary of parameters. Their names begin with
    ``name``, so that cases do not share collectives."""
    parameters = model.items() if isinstance(model, dict) else model.named_parameters()
    named = [(f"{name}.{key}", parameter) for key, parameter in parameters]
    return hvd.DistributedOptimizer(
        optimizer, named_parameters=named, compression=compression, **options
    )


def optimizer_without_motion(parameters, compression, **options):
    """Return Horovod's optimizer with learning rate 0, for cases that need only the gradients."""
    descent = torch.optim.SGD(list(parameters.values()), lr=0.0)
    return distributed(compression.name, parameters, descent, compression, **options)


class Reducer:
    """Reduces gradients, which are passed and returned as arrays by name.

    groups : Horovod's groups, as a number or as lists of names
    """

    def __init__(self, compressor, variables, *, as_function=True, groups=None, **how):
        self.variables = variables
        if isinstance(groups, list):
            groups = [[variables[key] for key in keys] for keys in groups]
        self.optimizer = optimizer_without_motion(variables, compressor, groups=groups, **how)

    def __call__(self, gradients):
        self.optimizer.zero_grad()
        give_gradients(
            {self.variables[key]: torch.as_tensor(each) for key, each in gradients.items()}
        )
        self.optimizer.step()
        return {key: parameter.grad.numpy().copy() for key, parameter in self.variables.items()}

    def forget(self):
        forget_step(self.optimizer)


def forget_step(optimizer):
    """Wait for a failed step's allreduces, and make Horovod's optimizer ready for a new step."""
    for handle, _ in optimizer._handles.values():
        hvd.synchronize(handle)
    optimizer.load_state_dict(optimizer.state_dict())


class Books(_common.Books):
    fw = sys.modules[__name__]


def step_of(compressor, variables, **how):
    reduce = Reducer(compressor, variables, **how)
    return lambda: reduce({key: torch.randn(v.shape) for key, v in variables.items()})


def later_step_of(compressor, variables, ours=None, **how):
    """Return a function that makes a step by ``hvd.allreduce``, which only the carrier can
    check."""

    def take():
        give_gradients({v: torch.randn(v.shape) for v in variables.values()})
        pending = []
        for key, parameter in variables.items():
            wire, context = compressor.compress(parameter.grad)
            name = f"{compressor.name}.{key}"
            pending.append((hvd.allreduce_async(wire, name=name, **how), context))
        for handle, context in pending:
            compressor.decompress(hvd.synchronize(handle), context)

    return take


def is_usable(name):
    return float(summed(torch.ones(1), f"{name}.usable")) == hvd.size()
