"""Properties of a DistributedDataParallel model: its parameters by name, and settings that exclude
a hook."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.errors import InvalidOption, UnsupportedInput
from hvd_sparse.frontend.torch.arrays import dtype_of
from hvd_sparse.state.state_check import bare
from hvd_sparse.types import FLOATS
from hvd_sparse.untyped import Params

REMEDY = (
    "leave it out, or wrap the bare model anew, DistributedDataParallel(model.module), and "
    "register that; for values in 16 bits take codec={'id': 'block16', 'values': 'float16'}"
)

REFUSED = {
    "skip_all_reduce_unused_params": "it would call the hook for some of its buckets only: leave "
    "it out, find_unused_parameters=True is enough",
    "mixed_precision": "parameters change their dtype in a step: leave it out, and train under "
    "torch.autocast",
    "_use_python_reducer": "torch.compile's optimize_ddp='python_reducer' calls hooks without "
    "buckets: set torch._dynamo.config.optimize_ddp to True",
}
"""Settings of DDP that exclude a hook, and why."""


def check_model(model: Params) -> DistributedDataParallel:
    """Return the model if it can take a hook.

    Raises
    ------
    InvalidOption : it is no DistributedDataParallel, or has a hook
    UnsupportedInput : it has gradients that cannot be compressed
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidOption(
            f"the model is {type(model).__name__}: wrap it before, as in "
            "model = torch.nn.parallel.DistributedDataParallel(model), and register that"
        )
    if model._comm_hooks:
        hook = model._comm_hooks[0][0]
        raise InvalidOption(
            f"the model has the communication hook {hook.__name__!r}, and DDP takes one, for good: "
            f"{REMEDY}"
        )
    for option, why in REFUSED.items():
        if getattr(model, option, None):
            raise InvalidOption(f"DDP has {option.lstrip('_')}: {why}")
    for name, module in model.module.named_modules():
        if getattr(module, "sparse", False) and isinstance(
            module, (torch.nn.Embedding, torch.nn.EmbeddingBag)
        ):
            raise UnsupportedInput(
                f"tensor '{name}.weight' has sparse gradients, which a hook cannot reduce: build "
                f"the {type(module).__name__} with sparse=False"
            )
    return model


def parameters_of(model: DistributedDataParallel) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters that DDP reduces, with the names that the bare model has for them,
    compiled or not.

    Raises
    ------
    InvalidOption : there are none
    UnsupportedInput : one has a dtype that cannot be compressed
    """
    # As DDP asks its list, for every name that a parameter has: one of the root module's own is
    # ".weight" to it, so that "weight" in the list ignores nothing.
    reduced = {
        parameter
        for place, module in model.module.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if f"{place}.{name}" not in model.parameters_to_ignore
    }
    named = [
        (bare(name), parameter)
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and parameter in reduced
    ]
    if not named:
        raise InvalidOption(
            "DDP reduces no parameter of this model: set requires_grad of the trained ones before "
            "making DistributedDataParallel"
        )
    for name, parameter in named:
        if dtype_of(parameter) not in FLOATS:
            raise UnsupportedInput(
                f"tensor {name!r} has dtype {dtype_of(parameter)}: only "
                f"{', '.join(sorted(FLOATS))} can be compressed; keep it as parameters of these "
                "dtypes, or let DDP ignore it"
            )
    return named
