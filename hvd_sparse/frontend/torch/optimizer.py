"""Reads the settings of torch's optimizers, and predicts the learning rates of their schedulers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from hvd_sparse.errors import InvalidOption
from hvd_sparse.optimizer_memory import (
    OF_ADAM,
    OF_MUON,
    OF_SGD,
    Handover,
    Rates,
    first_rates,
    foreseen,
)
from hvd_sparse.types import Optimizer, Option, Settings, Value

OF_SCHEDULERS = "_wrapped_by_lr_sched"
"""Attribute that learning rate schedulers set on the ``step`` that they wrap."""


def read_optimizer(optimizer: Optimizer) -> Handover:
    """Return the optimizer's name, and the classes of the memories that can compute its updates,
    none for an unknown kind of optimizer. Raises InvalidOption for an object that is not a torch
    optimizer, and for Horovod's optimizer. Also raises it if the program has replaced ``step``, or
    has set ``differentiable``, because then no memory can compute the updates."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidOption(
            f"optimizer is {type(optimizer).__name__}: give a torch.optim.Optimizer, or leave it "
            "out"
        )
    if hasattr(optimizer, "_allreduce_grad_async"):
        raise InvalidOption(
            "the optimizer is Horovod's already: make the compressor from the optimizer that is "
            "then given to hvd.DistributedOptimizer"
        )
    name, memories = type(optimizer).__name__, _memories_of(optimizer)
    replaced = vars(optimizer).get("step")
    if memories and replaced is not None and not hasattr(replaced, OF_SCHEDULERS):
        raise InvalidOption(
            f"step() of this {name} was replaced on the object, and would still do the work that "
            "the compressor takes over: replace it after making the compressor, or leave out "
            "optimizer="
        )
    for group in optimizer.param_groups if memories else ():
        refuse_options(name, group)
    return Handover(name, memories)


def refuse_options(name: str, group: Mapping[str, Option]) -> None:
    if group.get("differentiable"):
        raise InvalidOption(
            f"the optimizer has differentiable=True, which no memory supports: make the {name} "
            "without it, or leave out optimizer="
        )


def _memories_of(optimizer: torch.optim.Optimizer) -> tuple[type, ...]:
    # Compare ``step``: a subclass that only adds options is supported, one with its own step is
    # not. ``hvd_sparse_base`` is the original class of an optimizer that a compressor had before.
    step = unhooked(getattr(optimizer, "hvd_sparse_base", type(optimizer)).step)
    if step is unhooked(torch.optim.SGD.step):
        return OF_SGD
    adams = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam)
    if step in [unhooked(adam.step) for adam in adams]:
        return OF_ADAM
    own = getattr(torch.optim, "Muon", None)  # of torch 2.9 and later
    if own is not None and step is unhooked(own.step):
        return OF_MUON
    is_muon = partial(_is_reference_muon, step.__qualname__)
    return OF_MUON if all(map(is_muon, optimizer.param_groups)) else ()


STEPS = "hvd_sparse_steps"
"""Key in the saved state of SGD and Muon, for the compressor's number of steps of each parameter.
Under DDP, the parameter groups of the state have this key, because torch loads groups whole, also
before the compressor exists. Under Horovod, which would broadcast it with the groups, the state
itself has the key."""
OF_EVERY_GROUP = {
    *("params", "param_names", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"),
    STEPS,
}
"""Entries of a parameter group that torch, a scheduler or ``Applying`` adds."""
OF_REFERENCE_MUON = {"lr", "momentum", "weight_decay"}
OF_REFERENCE_PAIR = {"lr", "betas", "eps", "weight_decay"}


def _is_reference_muon(step: str, group: Mapping[str, Option]) -> bool:
    """Return whether a parameter group is one of Muon's reference implementation. ``step`` is the
    qualified name of the optimizer's method ``step``."""
    options = set(group) - OF_EVERY_GROUP
    if step == "SingleDeviceMuon.step":
        return options == OF_REFERENCE_MUON
    own = OF_REFERENCE_MUON if group.get("use_muon") else OF_REFERENCE_PAIR
    return step == "SingleDeviceMuonWithAuxAdam.step" and options == own | {"use_muon"}


def unhooked(step: Any) -> Any:
    """Return a class's ``step`` without the function that torch wraps around it."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def settings_of(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Option], shape: tuple[int, ...]
) -> Settings:
    """Return a parameter group's settings, for example the momentum, for a tensor of this shape.
    They are the arguments of a memory's method ``tune``."""
    refuse_options(type(optimizer).__name__, group)
    settings: Settings = {"rate": float(group["lr"])}
    if is_muon(group):
        return {**settings, **_settings_of_muon(group, shape)}
    settings["weight_decay"] = float(group["weight_decay"])
    settings |= {name: True for name in ("maximize", "amsgrad") if group.get(name)}
    if "betas" not in group:
        settings |= {name: float(group[name]) for name in ("momentum", "dampening")}
        settings["nesterov"] = bool(group["nesterov"])
        return settings
    settings["beta1"], settings["beta2"] = map(float, group["betas"])
    settings["epsilon"] = float(group["eps"])
    if is_decoupled(optimizer, group):
        settings["weight_decay"] = 0.0  # the optimizer applies it
    return settings


def _settings_of_muon(group: Mapping[str, Option], shape: tuple[int, ...]) -> Settings:
    # The defaults are those of Muon's reference.
    rows, columns = shape[-2:] if len(shape) > 1 else (1, 1)
    if group.get("adjust_lr_fn") == "match_rms_adamw":
        scale = 0.2 * math.sqrt(max(rows, columns))
    else:
        scale = math.sqrt(max(1, rows / columns))
    return {
        "momentum": float(group["momentum"]),
        "nesterov": bool(group.get("nesterov", True)),
        "ns_steps": int(group.get("ns_steps", 5)),
        "ns_coefficients": tuple(group.get("ns_coefficients", (3.4445, -4.7750, 2.0315))),
        "ns_epsilon": float(group.get("eps", 1e-7)),
        "scale": scale,
    }


def is_muon(group: Mapping[str, Option]) -> bool:
    return not {"betas", "dampening"} & set(group)


def is_decoupled(optimizer: torch.optim.Optimizer, group: Mapping[str, Option]) -> bool:
    """Return whether weight decay shrinks the parameter directly, as in AdamW and Muon."""
    if "use_muon" in group or is_muon(group):
        return True
    return bool(group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW)))


def foresee(optimizer: Optimizer, scheduler: Value, steps: int | None) -> Rates:
    """Return the learning rates of ``steps`` steps, or only the present rates if later ones are
    unknown. Raises InvalidOption if the scheduler is another optimizer's, was stepped already, or
    comes without ``steps``."""
    now = [float(group["lr"]) for group in optimizer.param_groups]
    if scheduler is None:
        changes = any("initial_lr" in group for group in optimizer.param_groups)
        return first_rates(now, "the scheduler was not given (scheduler=)" if changes else None)
    if getattr(scheduler, "optimizer", None) is not optimizer or not hasattr(scheduler, "step"):
        raise InvalidOption(
            f"scheduler is a {type(scheduler).__name__} that does not belong to this optimizer: "
            "give a torch.optim.lr_scheduler made with the optimizer that is given as optimizer="
        )
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        return first_rates(now, f"{type(scheduler).__name__} follows a metric")
    if steps is None:
        raise InvalidOption(
            "scheduler is given without steps: give steps=, the number of its steps in the run"
        )
    # Schedulers of other libraries keep no count.
    stepped = max(int(getattr(each, "last_epoch", 0)) for each in _parts_of(scheduler))
    if stepped > 0:
        raise InvalidOption(
            f"scheduler was stepped {stepped} times already: make the compressor "
            "before the scheduler is stepped or its state is loaded"
        )
    groups = [
        {**copy.deepcopy({k: v for k, v in group.items() if k != "params"}), "params": [_nothing()]}
        for group in optimizer.param_groups
    ]
    stand_in = torch.optim.SGD([_nothing()], lr=0.0)
    stand_in.param_groups, stand_in.defaults = groups, dict(optimizer.defaults)
    twin = _twin_of(scheduler, {id(optimizer): stand_in})
    # If the optimizer has loaded its state already, it has the rates of a later step.
    first = scheduler.get_last_lr() if hasattr(scheduler, "get_last_lr") else now
    for group, rate in zip(groups, first):
        group["lr"] = float(rate)

    def path(steps: int) -> Iterator[list[float]]:
        for step in range(steps):
            if step:
                twin.step()
            yield [float(group["lr"]) for group in groups]

    with warnings.catch_warnings():
        # torch warns that the stand-in optimizer takes no steps
        warnings.simplefilter("ignore")
        return foreseen(path, steps)


def _twin_of(scheduler: Value, memo: dict[int, Value]) -> Value:
    """Return a copy of a scheduler. The functions that a scheduler such as LambdaLR calls may be
    methods of another object, for example of a trainer. Such an object is copied only shallowly,
    because it may have the model. ``memo`` is the argument of ``copy.deepcopy``: it maps the id of
    an object to the object that replaces it in the copy."""
    parts = _parts_of(scheduler)
    for function in (each for part in parts for each in getattr(part, "lr_lambdas", ())):
        owner = getattr(getattr(function, "func", function), "__self__", None)
        if all(owner is not part for part in parts):
            try:  # the owner's own attributes are copied, for example a counter, but no model
                memo[id(owner)] = copy.copy(owner)
            except Exception:
                memo[id(owner)] = owner
    try:
        return copy.deepcopy(scheduler, memo)
    except Exception as error:
        raise InvalidOption(
            f"scheduler is a {type(scheduler).__name__} that cannot be copied to predict its "
            f"rates: {error}; give it functions or methods, not callable objects, or leave out "
            "scheduler="
        ) from error


def _parts_of(scheduler: Value) -> list[Value]:
    return [scheduler, *getattr(scheduler, "_schedulers", ())]  # ChainedScheduler has no count


def _nothing() -> torch.Tensor:
    return torch.zeros((), requires_grad=True)
