"""Laws of gradients on a device: trainings, and special events in them."""

import os
from contextlib import contextmanager, nullcontext
from functools import partial

import horovod.torch as hvd
import torch
from _common import SCRIPT, Scripted
from _device_runs import CPU, EARLY, cases, device_wire, engine_on, home, law, on_both
from _method_cases import STEPS, gradients_of
from _torch_cases import (
    digest_of,
    distributed,
    forget_step,
    give_gradients,
    optimizer_without_motion,
)
from torch import nn

from hvd_sparse.errors import SparseError
from hvd_sparse.torch import Compression, LocalSteps


def layers():
    return nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5)


def batch():
    draw = torch.Generator().manual_seed(hvd.rank())
    return torch.randn(16, 20, generator=draw), torch.randint(5, (16,), generator=draw)


def train(
    name,
    device,
    *,
    model=lambda: nn.Sequential(*layers()),
    method=Compression.ldte_bs,
    hands_over=False,
    num_groups=0,
    spoils=(),
    amp=None,
    process_set=hvd.global_process_set,
    **options,
):
    torch.manual_seed(0)
    device, engine = home(device)
    model = model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    chosen = {"density": 0.1, "min_numel": 40, **engine, **options}
    if hands_over:
        chosen["optimizer"] = optimizer
    if amp is not None:
        chosen["grad_scaler"] = amp
    chosen |= {"name": name, "process_set": process_set}
    compressor = method(model.named_parameters(), **chosen)
    groups = {"num_groups": num_groups, "process_set": process_set}
    optimizer = distributed(name, model, optimizer, compressor, **groups)
    inputs, targets = batch()
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        loss = loss * (float("nan") if step in spoils and hvd.rank() == 0 else 1.0)
        (loss if amp is None else amp.scale(loss)).backward()
        try:
            optimizer.synchronize()
        except SparseError:  # on all ranks
            seen.append("taken back")
            forget_step(optimizer)
            continue
        if amp is not None:
            amp.unscale_(optimizer)
            with optimizer.skip_synchronize():
                amp.step(optimizer)
            amp.update()
            seen.append(amp.get_scale())
            continue
        grads = [parameter.grad.cpu() for parameter in model.parameters()]
        seen.append(all(bool(grad.isfinite().all()) for grad in grads))
        if seen[-1]:
            with optimizer.skip_synchronize():
                optimizer.step()
    result = {
        "applied": digest_of(parameter.cpu() for parameter in model.parameters()),
        "finite": seen,
        "ways": sorted(set(compressor.stats()["ways"].values())),
        "wire": compressor.stats()["wire"],
        "dense_steps": compressor.stats()["dense_steps"],
        "state": digest_of(
            torch.tensor(array.tolist(), dtype=array.dtype)  # a scalar's stride may be anything
            for _, tensor in sorted(compressor.state_dict()["tensors"].items())
            for _, array in sorted(tensor["arrays"].items())
        ),
    }
    compressor.close()
    return result


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(20, n, bias=n == 5) for n in (20, 20, 5))
        self.tie()

    def tie(self):
        self.second.weight = self.first.weight

    def to(self, *given, **options):
        """Move the module and tie its weights again, because torch replaces the parameters when it
        moves them to an extension's device."""
        super().to(*given, **options)
        self.tie()
        return self

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()))


@law
def a_loss_scale(name, device):
    """Train with a loss scale, and count how often it is read. Once a step is enough, because
    reading a scaler on a device waits for the device."""
    asked = []

    def scale():
        asked.append(True)
        return 2.0 ** (len(asked) % 3)

    found = train(name, device, grad_scaler=scale)
    return found | {"asked": len(asked)}


def scaled(name, device, **options):
    """Train with torch's scaler, whose scale is on the device and falls after NaN or Inf."""
    amp = torch.amp.GradScaler(home(device)[0].type, init_scale=2.0**10, growth_interval=2)
    return train(name, device, amp=amp, spoils=(3,), **options)


@law
def early_completion(name, device):
    """Train on a side stream, with a Horovod that reports completion before its results are
    complete.

    On a GPU, Horovod does so only if the variable was set when Horovod started.
    """
    os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = "1"
    try:
        with side_stream(device):
            return train(name, device, num_groups=2)
    finally:
        os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = EARLY


def beside_the_default_stream(name, device, **options):
    with side_stream(device):
        return train(name, device, hands_over=True, **options)


@contextmanager
def side_stream(device):
    """While the block runs, use another current stream on the device. The CPU has no streams."""
    if device.type == "cpu":
        yield
        return
    before = torch.accelerator.current_stream(device)
    torch.accelerator.set_stream(torch.Stream(device))
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


@law
def auto_on_every_way(name, device):
    """Train with ``auto`` by a script: sparse, dense, float16, and steps that send everything."""

    def scripted(named, **options):
        compressor = Compression.auto(named, **options)
        compressor._policy.trial = Scripted(SCRIPT)
        return compressor

    return train(name, device, method=scripted)


STAGED = {"engine": "numpy"}
cases["a_grad_scaler"] = on_both(scaled)
cases["a_staged_grad_scaler"] = on_both(partial(scaled, **STAGED))
cases["a_side_stream"] = on_both(beside_the_default_stream)
cases["a_staged_side_stream"] = on_both(partial(beside_the_default_stream, num_groups=2, **STAGED))
OPTIONS = {
    "training": {},
    "groups_of_horovods": {"num_groups": 2},
    "tensors_that_travel_together": {"groups": 2, "select_over": "group"},
    "an_optimizer_handed_over": {"hands_over": True},
    "a_dense_warm_up": {"schedule": {"id": "dense_warmup", "value": 0.1, "warmup_steps": 2}},
    "a_nan_on_one_rank": {"spoils": (2,)},
    # NaN is an error on all ranks, and training goes on from the state before it.
    "a_step_that_is_taken_back": {"spoils": (2,), "on_nonfinite": "raise"},
    "tied_weights": {"model": Tied},
    "groups_that_are_planned": {"groups": "planned"},
    # Messages that would be longer than the tensors: Horovod sums what the tensors hold.
    "a_dense_fall_back": {"density": 0.9},
    "a_staged_nan_on_one_rank": {"spoils": (2,), **STAGED},
    "a_staged_step_that_is_taken_back": {"spoils": (2,), "on_nonfinite": "raise", **STAGED},
    "staged_tensors_that_travel_together": {"groups": 2, **STAGED},
}
for label, options in OPTIONS.items():
    cases[label] = on_both(partial(train, **options))


# -- states that travel, other layouts, and local steps ------------------------------------------


@law
def local_steps(name, device):
    """Make local steps with pseudo-gradients on the device. Horovod broadcasts the parameters."""
    torch.manual_seed(0)
    is_carried = device != CPU and hvd.nccl_built()
    wire = {"wire": "device" if is_carried else "host"}
    is_alone = device == CPU or is_carried
    device, engine = home(device)
    model = nn.Sequential(*layers()).to(device)
    with nullcontext() if is_alone else device_wire():
        local = LocalSteps(
            torch.optim.AdamW(model.parameters(), lr=0.01),
            model.named_parameters(),
            compression=partial(
                Compression.topk, density=0.1, min_numel=40, name=name, **engine, **wire
            ),
            every=2,
        )
        inputs, targets = batch()
        for _ in range(STEPS):
            local.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            local.step()
        result = {
            "applied": digest_of(parameter.cpu() for parameter in model.parameters()),
            "exchanges": local.stats()["sparse_steps"],
            "ways": sorted(set(local.stats()["ways"].values())),
        }
    local.compressor.close()
    return result


def take_steps(parameters, optimizer, drawn):
    """Make steps with given gradients, a list for each step; return the results on the CPU."""
    applied = []
    for gradients in drawn:
        optimizer.zero_grad()
        places = zip(parameters.values(), gradients)
        give_gradients({p: gradient.to(p.device) for p, gradient in places})
        optimizer.step()
        applied += [parameter.grad.cpu() for parameter in parameters.values()]
    return applied


def drawn_in(steps):
    return [[torch.from_numpy(gradients_of(hvd.rank(), step)[0]).float()] for step in steps]


@law
def a_checkpoint_to_and_from_the_cpu(name, device):
    """Load the state of a compressor on the device into one on the CPU, and the other way round."""
    found = {}
    for number, places in enumerate(((device, CPU), (CPU, device))):
        state, applied = None, []
        for place in places:
            parameters = {"t": nn.Parameter(torch.zeros(30, 20, device=place))}
            compressor = Compression.topk(
                parameters.items(), density=0.1, name=f"{name}.{number}.{place.type}"
            )
            optimizer = optimizer_without_motion(parameters, compressor)
            if state is not None:
                compressor.load_state_dict(state)
            applied += take_steps(parameters, optimizer, drawn_in(range(3)))
            state = compressor.state_dict()
            compressor.close()
            del optimizer
        found[f"applied {number}"] = digest_of(applied)
    return found


@law
def a_gradient_in_another_layout(name, device):
    weight = torch.arange(8 * 4 * 3 * 3.0).view(8, 4, 3, 3).to(device)
    parameters = {"w": nn.Parameter(weight.contiguous(memory_format=torch.channels_last))}
    compressor = Compression.topk(parameters.items(), density=0.1, name=name, min_numel=1)
    optimizer = optimizer_without_motion(parameters, compressor)
    draws = [torch.Generator().manual_seed(10 * step + hvd.rank()) for step in range(3)]
    drawn = [[torch.randn(8, 4, 3, 3, generator=draw)] for draw in draws]
    applied = take_steps(parameters, optimizer, drawn)
    compressor.close()
    return {"applied": digest_of(applied)}


@law
def gradients_of_one_buffer(name, device):
    """Use gradients that are parts of the program's own tensor; two passes are added in a step."""
    shapes = {"a": (30, 20), "b": (9, 7), "c": (6, 5, 4)}
    parameters = {
        key: nn.Parameter(torch.zeros(shape, device=device)) for key, shape in shapes.items()
    }
    sizes = [parameter.numel() for parameter in parameters.values()]
    buffer = torch.zeros(sum(sizes), device=device)
    for parameter, part in zip(parameters.values(), buffer.split(sizes)):
        parameter.grad = part.view(parameter.shape)
    compressor = Compression.ldte_bs(
        parameters.items(), density=0.1, name=name, min_numel=1, **engine_on(device)
    )
    optimizer = optimizer_without_motion(parameters, compressor, backward_passes_per_step=2)
    applied = []
    for step in range(4):
        buffer.zero_()
        for half in range(2):
            draw = torch.Generator().manual_seed(100 * step + 10 * half + hvd.rank())
            drawn = {
                p: torch.randn(p.shape, generator=draw).to(device) for p in parameters.values()
            }
            give_gradients(drawn)
        optimizer.step()
        applied.append(torch.cat([p.grad.flatten() for p in parameters.values()]).cpu())
    compressor.close()
    return {"applied": digest_of(applied)}
