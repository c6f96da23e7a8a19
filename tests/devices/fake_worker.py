"""Puts the engine torch to tensors of a device that have no entries: whatever asks for one on the
host, or for a size that only the device knows, raises.

``fake_worker.py`` prints, as JSON, what every kernel that must not wait raises ("" for nothing),
and what planted waits raise.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from devices.engine_worker import calls
from devices.vectors_on_device import carried
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from hvd_sparse.kernels import reference
from hvd_sparse.kernels import torch as engine
from hvd_sparse.kernels.contract import Aim, Brought, Kernels
from hvd_sparse.kernels.torch import passes, vector
from hvd_sparse.kernels.torch.coming import Pass
from hvd_sparse.kernels.torch.vector import DeviceVector

NAME = "acc"
NUMEL = 1000
NO_WAIT = (
    "directed", "orthogonalized", "clear", "restore", "assemble", "scatter_add",
    "trim",
)  # fmt: skip
"""Kernels that give a device work, and ask it for nothing."""


class ToTheHost(Exception):
    """A device's tensor is copied to the host."""


class NoCopies(TorchDispatchMode):
    """Raises where a tensor of the host is made of one of the device."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, values: Any = (), options: Any = None
    ) -> Any:
        result = operation(*values, **(options or {}))
        given = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        if any(each.device.type == NAME for each in given) and any(each.is_cpu for each in made):
            raise ToTheHost(str(operation))
        return result


def fake(array: np.ndarray, device: torch.device | str = NAME) -> torch.Tensor:
    """Return a tensor like an array's, without its entries; in ``upload``'s place, which waits for
    nothing."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return torch.empty(array.shape, dtype=dtype, device=device)


def raised(function: Callable[..., Any], *values: Any) -> str:
    """Return the name of what a call raises; nothing where it raises nothing."""
    try:
        function(*values)
    except Exception as error:
        return type(error).__name__
    return ""


def on_device(name: str, values: tuple[Any, ...]) -> list[Any]:
    """Return what a kernel is given, its vectors as those of the device."""
    names = list(inspect.signature(getattr(Kernels, name)).parameters)[1:]
    return [
        carried(parameter, value, lambda array: DeviceVector(fake(array)))
        for parameter, value in zip(names, values)
    ]


def kernels_raise() -> dict[str, str]:
    kernels = engine.TorchKernels(reference)
    given = calls(NUMEL)
    found = {
        name: raised(getattr(kernels, name), *on_device(name, given[name])) for name in NO_WAIT
    }
    three = [fake(np.empty(NUMEL, np.float32)) for _ in range(3)]
    aims = {
        "takes": Aim(1.0, 50),
        "looks": None,
        "brings statistics": Aim(1.0, 50, Brought._fields),
    }
    for what, aim in aims.items():
        found[f"a pass that {what}"] = raised(kernels.begin, [Pass(*three, aim)])
    both = [Pass(*three, aim) for aim in aims.values()]
    found["a bucket's passes"] = raised(kernels.begin, both)
    chosen = given["restore"][1]
    sums = [(DeviceVector(fake(chosen.values)), [chosen, chosen], 0.5)] * 2
    found["a bucket's sums"] = raised(kernels.assemble_together, sums)
    return found


def planted() -> dict[str, str]:
    """What waits in a kernel would raise."""
    x = fake(np.empty(NUMEL, np.float32))
    waits: dict[str, Callable[[], Any]] = {
        "item": lambda: x.sum().item(),
        "if": lambda: 1 if x.sum() > 0 else 0,
        "nonzero": lambda: x.nonzero(),
        "a mask": lambda: x[x > 0],
        "cpu": lambda: x.cpu(),
        "an item in a pass": lambda: with_item(x),
    }
    return {what: raised(wait) for what, wait in waits.items()}


def with_item(x: torch.Tensor) -> None:
    """Begin a pass by an engine that asks for how many entries it takes."""
    own = passes.accumulated

    def waiting(one: Pass) -> Any:
        answers = own(one)
        int(answers.words[0].item())
        return answers

    passes.accumulated = waiting
    try:
        engine.TorchKernels(reference).begin([Pass(x, x, x, Aim(1.0, 50))])
    finally:
        passes.accumulated = own


def main() -> None:
    _setup_privateuseone_for_python_backend(NAME)
    vector.upload = engine.upload = fake
    with FakeTensorMode(), NoCopies():
        print(json.dumps({"kernels": kernels_raise(), "planted": planted()}))


if __name__ == "__main__":
    main()
