"""Learning rates that PyTorch's schedulers will set, found by stepping a copy."""

from __future__ import annotations

import copy
import warnings

import torch

from hvd_sparse.errors import InvalidOption
from hvd_sparse.optimizer_memory import Rates, first_rates, refuse_path
from hvd_sparse.untyped import Optimizer, Value

PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau


def foresee(optimizer: Optimizer, scheduler: Value, steps: int | None) -> Rates:
    """Return the rates of a run.  Neither optimizer nor scheduler is changed.

    Parameters
    ----------
    optimizer : that is handed over
    scheduler : of its rates; None for none
    steps : calls of the scheduler's ``step()`` in the run; None where the mean is not asked for

    Raises
    ------
    InvalidOption : the scheduler is another optimizer's, none, or under way
    """
    now = [float(group["lr"]) for group in optimizer.param_groups]
    if scheduler is None:
        changes = any("initial_lr" in group for group in optimizer.param_groups)
        return first_rates(now, "the scheduler was not given (scheduler=)" if changes else None)
    if getattr(scheduler, "optimizer", None) is not optimizer or not hasattr(scheduler, "step"):
        raise InvalidOption(
            f"scheduler is a {type(scheduler).__name__} that is not of this optimizer: give one of "
            "torch.optim.lr_scheduler that was made of the optimizer given as optimizer="
        )
    if isinstance(scheduler, PLATEAU):
        return first_rates(now, f"{type(scheduler).__name__} follows a metric")
    if steps is None:
        raise InvalidOption(
            "scheduler is given without steps: give steps=, how often it is stepped in the run"
        )
    if scheduler.last_epoch > 0:
        raise InvalidOption(
            f"scheduler was stepped {scheduler.last_epoch} times already: make the compressor "
            "before the scheduler is stepped or its state is loaded"
        )
    return Rates(_path(optimizer, scheduler, steps), is_foreseen=True)


def _path(optimizer: Optimizer, scheduler: Value, steps: int) -> list[list[float]]:
    groups = [
        {**copy.deepcopy({k: v for k, v in group.items() if k != "params"}), "params": [_nothing()]}
        for group in optimizer.param_groups
    ]
    stand_in = torch.optim.SGD([_nothing()], lr=0.0)
    stand_in.param_groups, stand_in.defaults = groups, dict(optimizer.defaults)
    twin = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    path = []
    with warnings.catch_warnings():
        # that the optimizer, which stands in here, takes no steps
        warnings.simplefilter("ignore")
        try:
            for step in range(steps):
                if step:
                    twin.step()
                path.append([float(group["lr"]) for group in groups])
        except Exception as error:
            refuse_path(error, steps)
    return path


def _nothing() -> torch.Tensor:
    return torch.zeros((), requires_grad=True)
