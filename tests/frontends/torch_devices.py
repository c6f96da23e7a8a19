"""Worker, under mpirun: compares gradients on the pretend device with the same on the CPU, and the
tensors that Horovod gets by both wires. Broken engines and wires must be detected.

There are two wires: messages are sent from the host's memory, or by Horovod's operations on the
device. ``HVD_SPARSE_TEST_ENGINE`` selects a GPU's engine.
"""

import os
from contextlib import contextmanager, nullcontext
from functools import partial

import _method_cases as core
import _torch_cases as fw
import horovod.torch as hvd
import numpy as np
import torch
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted
from _device import DEVICE, can_carry, device_wire, is_pretend, process_sets
from devices import carried, pretend
from torch import nn

from hvd_sparse.collectives import horovod_torch
from hvd_sparse.collectives.horovod_torch import HorovodDeviceCollective, HorovodTorchCollective
from hvd_sparse.configuration import PARTS
from hvd_sparse.errors import InvalidOption, SparseError
from hvd_sparse.torch import Compression, LocalSteps

CPU = torch.device("cpu")
EARLY = os.environ.get("HOROVOD_ENABLE_ASYNC_COMPLETION", "0")
cases = Cases()


def engine_on(device):
    engine = os.environ.get("HVD_SPARSE_TEST_ENGINE")
    return {} if engine is None or device == CPU else {"engine": engine}


def home(device):
    """Return the device on which a model computes its gradients, and the options for the engine.

    A GPU rounds a model's own gradients differently than the CPU. So with a GPU, a run "on the CPU"
    computes gradients on the GPU, too, and copies them to the host.
    """
    if device == CPU and not is_pretend:
        return DEVICE, {"engine": "numpy"}
    return device, engine_on(device)


def nothing(*_):
    return 0


# A GPU is as late as it is, and counts nothing.
late, reused, waited = (
    each if is_pretend else nothing for each in (pretend.late, pretend.reused, pretend.waits)
)


def on_both(run):
    """Return a case that runs a function on the CPU, and on the device with both wires."""

    def case(name):
        late(False)
        with without_nccl():
            expected = run(f"{name}.cpu", CPU)
        late(True)
        before = reused()
        with without_nccl():
            outcome = {"expected": expected, "found": run(f"{name}.device", DEVICE)}
        if can_carry():
            with device_wire():
                outcome["carried"] = run(f"{name}.wire", DEVICE)
        late(False)
        assert reused() == before, "a pinned buffer was changed before the device had read it"
        return outcome

    return case


@contextmanager
def without_nccl():
    """While the block runs, Horovod reports that it was built without NCCL."""
    own, hvd.nccl_built = hvd.nccl_built, lambda: False
    try:
        yield
    finally:
        hvd.nccl_built = own


def law(run):
    cases[run.__name__] = on_both(run)
    return run


def method(case, dtype=torch.float32, **options):
    def run(name, device):
        parameters = {
            f"t{i}": nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
            for i, shape in enumerate(core.SHAPES)
        }
        given = {**engine_on(device), **SPARSE_ONLY, **options, "name": name}
        if case in core.STAYING:
            compressor = Compression.build(parameters.items(), **core.STAYING[case], **given)
        else:
            compressor = core.compressor_of(Compression, case, parameters.items(), **given)
        optimizer = fw.optimizer_without_motion(parameters, compressor)
        applied, waits, in_backward = [], [], []
        for step in range(core.STEPS):
            optimizer.zero_grad()
            drawn = [torch.from_numpy(each) for each in core.gradients_of(hvd.rank(), step)]
            chosen = {p: g.to(dtype).to(device) for p, g in zip(parameters.values(), drawn)}
            before = waited()
            fw.give_gradients(chosen)
            in_backward.append(waited() - before)
            optimizer.step()
            waits.append(waited() - before)
            applied += [parameter.grad.cpu() for parameter in parameters.values()]
        stats, made = compressor.stats(), compressor.configuration
        compressor.close()
        return {
            "applied": fw.digest_of(applied),
            "ways": sorted(set(stats["ways"].values())),
            "wire": stats["wire"],
            "because": sorted(set(stats["staged_because"].values())),
            "parts": [f"{kind} {getattr(made, kind).id}" for kind in PARTS if kind != "schedule"],
            "waits": min(waits),  # of a step that found all it needs in its first pass
            "in_backward": max(in_backward),
            "is_finite": bool(torch.cat([a.flatten() for a in applied]).isfinite().all()),
        }

    return run


for each in (*core.METHODS, *core.BUILT, *core.STAYING):
    cases[each] = on_both(method(each))
cases["two_buckets"] = on_both(method("ldte_bs", groups=2))
for option, choice in core.OPTIONS_ON_DEVICES.items():
    cases[f"option {option}"] = on_both(method("topk", **{option: choice}))
for kind in (torch.float64, torch.float16, torch.bfloat16):
    cases[str(kind).removeprefix("torch.")] = on_both(method("topk", kind, min_numel=20))


# -- trainings, and special events in them --------------------------------------------------------


def layers():
    return nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5))


def batch():
    draw = torch.Generator().manual_seed(hvd.rank())
    return torch.randn(16, 20, generator=draw), torch.randint(5, (16,), generator=draw)


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def train(
    name,
    device,
    *,
    method=Compression.ldte_bs,
    handed=None,
    num_groups=0,
    spoils=(),
    amp=None,
    **options,
):
    torch.manual_seed(0)
    device, engine = home(device)
    model = layers().to(device)
    optimizer = (handed or SGD)(model.parameters())
    chosen = {"density": 0.1, "min_numel": 40, **engine, **options}
    if handed:
        chosen["optimizer"] = optimizer
    if amp is not None:
        chosen["grad_scaler"] = amp
    compressor = method(model.named_parameters(), name=name, **chosen)
    optimizer = fw.distributed(name, model, optimizer, compressor, num_groups=num_groups)
    inputs, targets = batch()
    seen = []
    for step in range(core.STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        loss = loss * (float("nan") if step in spoils and hvd.rank() == 0 else 1.0)
        (loss if amp is None else amp.scale(loss)).backward()
        try:
            optimizer.synchronize()
        except SparseError:  # on all ranks
            seen.append("taken back")
            fw.forget_step(optimizer)
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
        "applied": fw.digest_of(parameter.cpu() for parameter in model.parameters()),
        "finite": seen,
        "ways": sorted(set(compressor.stats()["ways"].values())),
        "wire": compressor.stats()["wire"],
        "dense_steps": compressor.stats()["dense_steps"],
        "state": fw.digest_of(
            torch.tensor(array.tolist(), dtype=array.dtype)  # a scalar's stride may be anything
            for _, tensor in sorted(compressor.state_dict()["tensors"].items())
            for _, array in sorted(tensor["arrays"].items())
        ),
    }
    compressor.close()
    return result


@law
def a_loss_scale(name, device):
    """The loss scale is read once a step, because reading it on a device waits for the device."""
    asked = []

    def scale():
        asked.append(True)
        return 2.0 ** (len(asked) % 3)

    found = train(name, device, grad_scaler=scale)
    assert len(asked) == core.STEPS, asked
    return found


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
        return train(name, device, handed=SGD, **options)


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
    "sgd_handed_over": {"handed": SGD},
    "amsgrad_handed_over": {"handed": partial(torch.optim.AdamW, lr=0.01, amsgrad=True)},
    "a_dense_warm_up": {"schedule": {"id": "dense_warmup", "value": 0.1, "warmup_steps": 2}},
    "a_nan_on_one_rank": {"spoils": (2,)},
    # NaN is an error on all ranks, and training goes on from the state before it.
    "a_step_that_is_taken_back": {"spoils": (2,), "on_nonfinite": "raise"},
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
    model = layers().to(device)
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
        for _ in range(core.STEPS):
            local.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            local.step()
        assert local.stats()["sparse_steps"] > 0
        result = {
            "applied": fw.digest_of(parameter.cpu() for parameter in model.parameters()),
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
        fw.give_gradients({p: gradient.to(p.device) for p, gradient in places})
        optimizer.step()
        applied += [parameter.grad.cpu() for parameter in parameters.values()]
    return applied


def drawn_in(steps):
    return [[torch.from_numpy(core.gradients_of(hvd.rank(), step)[0]).float()] for step in steps]


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
            optimizer = fw.optimizer_without_motion(parameters, compressor)
            if state is not None:
                compressor.load_state_dict(state)
            applied += take_steps(parameters, optimizer, drawn_in(range(3)))
            state = compressor.state_dict()
            compressor.close()
            del optimizer
        found[f"applied {number}"] = fw.digest_of(applied)
    return found


@law
def a_gradient_in_another_layout(name, device):
    weight = torch.arange(8 * 4 * 3 * 3.0).view(8, 4, 3, 3).to(device)
    parameters = {"w": nn.Parameter(weight.contiguous(memory_format=torch.channels_last))}
    compressor = Compression.topk(parameters.items(), density=0.1, name=name, min_numel=1)
    optimizer = fw.optimizer_without_motion(parameters, compressor)
    draws = [torch.Generator().manual_seed(10 * step + hvd.rank()) for step in range(3)]
    drawn = [[torch.randn(8, 4, 3, 3, generator=draw)] for draw in draws]
    applied = take_steps(parameters, optimizer, drawn)
    compressor.close()
    return {"applied": fw.digest_of(applied)}


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
    optimizer = fw.optimizer_without_motion(parameters, compressor, backward_passes_per_step=2)
    applied = []
    for step in range(4):
        buffer.zero_()
        for half in range(2):
            draw = torch.Generator().manual_seed(100 * step + 10 * half + hvd.rank())
            drawn = {
                p: torch.randn(p.shape, generator=draw).to(device) for p in parameters.values()
            }
            fw.give_gradients(drawn)
        optimizer.step()
        applied.append(torch.cat([p.grad.flatten() for p in parameters.values()]).cpu())
    compressor.close()
    return {"applied": fw.digest_of(applied)}


# -- wires, and what must be detected -------------------------------------------------------------


@cases
def refusals(name):
    there, here = torch.zeros(30, 20, device=DEVICE), torch.zeros(30, 20)
    words = {}

    def refused(what, **tensors):
        try:
            Compression.topk(tensors.items(), density=0.1, name=f"{name}.{what}", wire="device")
        except InvalidOption as error:
            words[what] = str(error)

    with without_nccl():
        refused("no nccl", a=there)
    refused("host", a=there, b=here)
    assert "wire is 'device', and Horovod was built without NCCL" in words["no nccl"], words
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in words["no nccl"], words
    assert "tensor 'b' is on cpu" in words["host"], words
    return {}


def warm_messages_have_one_length(name):
    parameters = {"t": nn.Parameter(torch.zeros(100, 50, device=DEVICE))}
    shapes, messages = [], set()
    with carried.carrying():
        compressor = Compression.gaussian_k(parameters.items(), density=0.05, name=name)
        optimizer = fw.optimizer_without_motion(parameters, compressor)
        for step in range(12):
            optimizer.zero_grad()
            before, sent = len(carried.given), compressor.stats()["payload_bytes"]
            draw = torch.Generator().manual_seed(10 * step + hvd.rank())
            fw.give_gradients({parameters["t"]: torch.randn(100, 50, generator=draw).to(DEVICE)})
            optimizer.step()
            new = carried.given[before:]
            shapes.append([list(shape) for what, shape in new if what == "allgather"])
            messages.add(compressor.stats()["payload_bytes"] - sent)
        stats = compressor.stats()
        compressor.close()
    assert len(messages) > 1
    assert all(len(each) == 1 for each in shapes), shapes
    assert all(each == shapes[2] for each in shapes[2:]), shapes
    assert 0 < stats["padding_bytes"] < stats["payload_bytes"], stats
    counted = ("payload_bytes", "padding_bytes", "carrier_bytes", "dense_bytes")
    assert stats["bytes_sent"] == sum(stats[key] for key in counted), stats


def a_stream_that_does_not_wait_is_found_out(name):
    """Messages arrive unchanged if results are late, but not with two wires that leave out a
    wait."""
    os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = "1"
    late(True)
    found = {}
    with carried.carrying():
        for kind in (HorovodDeviceCollective, Elsewhere, Impatient):
            wire = kind(hvd.global_process_set, DEVICE)
            array = np.arange(300, dtype=np.uint8)
            gathered = wire.allgather(array, f"{name}.{kind.__name__}").wait(None)
            found[kind.__name__] = gathered.tobytes() == hvd.size() * array.tobytes()
    late(False)
    os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = EARLY
    assert found == {"HorovodDeviceCollective": True, "Elsewhere": False, "Impatient": False}, found


class Elsewhere(HorovodDeviceCollective):
    """A broken wire, which submits messages on another stream than the one of the upload."""

    def allgather(self, array, name):
        own, self._stream = self._stream, torch.Stream(DEVICE)
        upload = horovod_torch.upload

        def there(block, device):
            torch.accelerator.set_stream(own)
            sent = upload(block, device)
            torch.accelerator.set_stream(self._stream)
            return sent

        horovod_torch.upload = there
        try:
            return super().allgather(array, name)
        finally:
            horovod_torch.upload = upload


class Impatient(HorovodDeviceCollective):
    """A broken wire, which reads a result without waiting for the default stream."""

    def _fetch(self, *given):
        catch_up, horovod_torch.catch_up = horovod_torch.catch_up, nothing
        try:
            return super()._fetch(*given)
        finally:
            horovod_torch.catch_up = catch_up


if is_pretend:
    cases(warm_messages_have_one_length)
    cases(a_stream_that_does_not_wait_is_found_out)


@cases
def collectives(name):
    """Run all three collectives in process sets of one and of all ranks, also without entries."""
    found = {}
    alone = [each for each in process_sets if each.included()]
    if not can_carry():
        return found
    late(is_pretend)
    with device_wire():
        for each, process_set in zip(("all", "alone"), (hvd.global_process_set, *alone)):
            here = HorovodTorchCollective(process_set)
            there = HorovodDeviceCollective(process_set, DEVICE)
            results = [given_to(wire, f"{name}.{each}") for wire in (here, there)]
            found[each] = [results[0] == results[1], len(results[0])]
    late(False)
    return found


def given_to(wire, name):
    rank, size, results = wire.rank, wire.world_size, []
    for number, dtype in enumerate((np.uint8, np.float32, np.int64)):
        for count in (0, 7 + rank):
            array = np.arange(count, dtype=dtype) + rank
            tag = f"{name}.{type(wire).__name__}.{number}.{count > 0}"
            splits = np.array([count, *[0] * (size - 1)], np.int32)
            same = np.full(5, rank + 1, np.float32)
            results += [
                wire.allgather(array, f"{tag}.gather"),
                wire.alltoall(array, splits, f"{tag}.exchange"),
                wire.allreduce(same, f"{tag}.sum"),
            ]
    return [each.wait(None).tobytes() for each in results]


if __name__ == "__main__":
    fw.run(cases)
