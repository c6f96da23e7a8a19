"""Worker, under mpirun: gradients on the pretend device, beside the same on the CPU.

``HVD_SPARSE_TEST_DEVICE=cuda`` takes a GPU, for ``scripts/gpu-check``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases
from _integer_gradients import SHAPES, gradients_of
from _method_cases import BUILT, METHODS, STEPS, compressor_of
from _torch_cases import digest_of, give_gradients, run_torch_cases
from _torch_laws import optimizer_without_motion
from devices import pretend
from torch import nn

from hvd_sparse.torch import Compression

NAME = os.environ.get("HVD_SPARSE_TEST_DEVICE", pretend.NAME)
DEVICE = pretend.load() if NAME == pretend.NAME else torch.device(NAME, 0)
CPU = torch.device("cpu")
cases = Cases()
Run = Callable[[str, torch.device], dict[str, Any]]


def nothing(*_: object) -> int:
    return 0


# A GPU is as late as it is, and counts nothing.
is_pretend = NAME == pretend.NAME
late, reused, waited = (
    each if is_pretend else nothing for each in (pretend.late, pretend.reused, pretend.waits)
)


def on_both(run: Run) -> Callable[[str], dict[str, Any]]:
    """Make a case of a function that is run on the CPU and on the device."""

    def case(name: str) -> dict[str, Any]:
        late(False)
        expected = run(f"{name}.cpu", CPU)
        late(True)
        found = run(f"{name}.device", DEVICE)
        late(False)
        assert reused() == 0, "a pinned buffer was changed before the device had read it"
        return {"expected": expected, "found": found}

    return case


def law(run: Run) -> Run:
    cases[run.__name__] = on_both(run)
    return run


def with_gradients(
    name: str, device: torch.device, compressor: Any, parameters: Any, dtype: torch.dtype
) -> dict[str, Any]:
    """Some steps of gradients that are the same every time."""
    optimizer = optimizer_without_motion(parameters, compressor)
    applied, waits = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        drawn = [torch.from_numpy(each) for each in gradients_of(hvd.rank(), step)]
        chosen = {p: g.to(dtype).to(device) for p, g in zip(parameters.values(), drawn)}
        before = waited()
        give_gradients(chosen)
        optimizer.step()
        waits.append(waited() - before)
        applied += [parameter.grad.cpu() for parameter in parameters.values()]
    found = {
        "applied": digest_of(applied),
        "ways": sorted(set(compressor.stats()["ways"].values())),
    }
    compressor.close()
    return found | {
        "waits": waits[-1],
        "is_finite": bool(torch.cat([a.flatten() for a in applied]).isfinite().all()),
    }


def method(case: str) -> Run:
    def run(name: str, device: torch.device) -> dict[str, Any]:
        parameters = {
            f"t{i}": nn.Parameter(torch.zeros(shape, device=device))
            for i, shape in enumerate(SHAPES)
        }
        compressor = compressor_of(Compression, case, parameters.items(), name=name, **SPARSE_ONLY)
        return with_gradients(name, device, compressor, parameters, torch.float32)

    return run


for each in (*METHODS, *BUILT):
    cases[each] = on_both(method(each))


def of_dtype(dtype: torch.dtype) -> Run:
    def run(name: str, device: torch.device) -> dict[str, Any]:
        parameters = {
            f"t{i}": nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
            for i, shape in enumerate(SHAPES)
        }
        compressor = Compression.topk(parameters.items(), density=0.2, name=name, min_numel=20)
        return with_gradients(name, device, compressor, parameters, dtype)

    return run


for kind in (torch.float64, torch.float16, torch.bfloat16):
    cases[str(kind).removeprefix("torch.")] = on_both(of_dtype(kind))


def train(name: str, device: torch.device, **options: Any) -> dict[str, Any]:
    """A net with norms and an optimizer with momentum; what its weights become."""
    torch.manual_seed(0)
    layers = nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5)
    model = nn.Sequential(*layers).to(device)
    handed = options.pop("hands_over", False)
    groups = options.pop("num_groups", 0)
    scaler = options.pop("scaler", None)
    spoils = options.pop("spoils", ())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    named = list(model.named_parameters())
    compressor = Compression.ldte_bs(
        named,
        name=name,
        **{"density": 0.1, "min_numel": 40, **options},
        **({"optimizer": optimizer} if handed else {}),
        **({"grad_scaler": scaler} if scaler is not None else {}),
    )
    keyed = [(f"{name}.{key}", parameter) for key, parameter in named]
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=keyed, compression=compressor, num_groups=groups
    )
    draw = torch.Generator().manual_seed(hvd.rank())
    inputs, targets = torch.randn(16, 20, generator=draw), torch.randint(5, (16,), generator=draw)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        (loss * (float("nan") if step in spoils and hvd.rank() == 0 else 1.0)).backward()
        optimizer.synchronize()
        grads = [parameter.grad.cpu() for parameter in model.parameters()]
        seen.append(all(bool(grad.isfinite().all()) for grad in grads))
        if seen[-1]:
            with optimizer.skip_synchronize():
                optimizer.step()
    result = {
        "applied": digest_of(parameter.cpu() for parameter in model.parameters()),
        "finite": seen,
        "ways": sorted(set(compressor.stats()["ways"].values())),
        "state": digest_of(
            torch.tensor(array.tolist(), dtype=array.dtype)  # a scalar's stride may be anything
            for _, tensor in sorted(compressor.state_dict()["tensors"].items())
            for _, array in sorted(tensor["arrays"].items())
        ),
    }
    compressor.close()
    return result


@law
def training(name: str, device: torch.device) -> dict[str, Any]:
    return train(name, device)


@law
def groups_of_horovods(name: str, device: torch.device) -> dict[str, Any]:
    return train(name, device, num_groups=2)


@law
def tensors_that_travel_together(name: str, device: torch.device) -> dict[str, Any]:
    return train(name, device, groups=2, select_over="group")


@law
def an_optimizer_handed_over(name: str, device: torch.device) -> dict[str, Any]:
    return train(name, device, hands_over=True)


@law
def a_dense_warm_up(name: str, device: torch.device) -> dict[str, Any]:
    schedule = {"id": "dense_warmup", "value": 0.1, "warmup_steps": 2}
    return train(name, device, schedule=schedule)


@law
def a_nan_on_one_rank(name: str, device: torch.device) -> dict[str, Any]:
    return train(name, device, spoils=(2,))


@law
def a_loss_scale(name: str, device: torch.device) -> dict[str, Any]:
    """It is asked for once a step, as a scaler on a device is waited for."""
    asked = []

    def scale() -> float:
        asked.append(True)
        return 2.0 ** (len(asked) % 3)

    found = train(name, device, scaler=scale)
    return found | {"asked": len(asked)}


@law
def a_checkpoint_to_and_from_the_cpu(name: str, device: torch.device) -> dict[str, Any]:
    """The state of a compressor on the device goes on in one on the CPU, and the other way."""
    start, end = (device, CPU), (CPU, device)
    found = {}
    for number, (before, after) in enumerate((start, end)):
        state, applied = None, []
        for place in (before, after):
            parameters = {"t": nn.Parameter(torch.zeros(30, 20, device=place))}
            compressor = Compression.topk(
                parameters.items(), density=0.1, name=f"{name}.{number}.{place.type}"
            )
            optimizer = optimizer_without_motion(parameters, compressor)
            if state is not None:
                compressor.load_state_dict(state)
            for step in range(3):
                optimizer.zero_grad()
                drawn = torch.from_numpy(gradients_of(hvd.rank(), step)[0]).float()
                give_gradients({parameters["t"]: drawn.to(place)})
                optimizer.step()
                applied.append(parameters["t"].grad.cpu())
            state = compressor.state_dict()
            compressor.close()
            del optimizer
        found[f"applied {number}"] = digest_of(applied)
    return found


@law
def a_gradient_in_another_layout(name: str, device: torch.device) -> dict[str, Any]:
    """channels_last, and a parameter whose gradient is a view of another's."""
    weight = torch.arange(8 * 4 * 3 * 3.0).view(8, 4, 3, 3)
    parameters = {
        "w": nn.Parameter(weight.to(device).contiguous(memory_format=torch.channels_last))
    }
    compressor = Compression.topk(parameters.items(), density=0.1, name=name, min_numel=1)
    optimizer = optimizer_without_motion(parameters, compressor)
    applied = []
    for step in range(3):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(10 * step + hvd.rank())
        give_gradients({parameters["w"]: torch.randn(8, 4, 3, 3, generator=draw).to(device)})
        optimizer.step()
        applied.append(parameters["w"].grad.cpu())
    compressor.close()
    return {"applied": digest_of(applied)}


if __name__ == "__main__":
    hvd.init()
    run_torch_cases(cases)
