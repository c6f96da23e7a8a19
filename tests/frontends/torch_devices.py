"""Worker, under mpirun: gradients on the pretend device, beside the same on the CPU.

There are two wires: messages through the host, and by Horovod's operations on the device.
``HVD_SPARSE_TEST_DEVICE=cuda`` takes a GPU, or one a rank, for ``scripts/gpu-check``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted
from _device_cases import OPTIONS, STAYING
from _integer_gradients import SHAPES, gradients_of
from _method_cases import BUILT, METHODS, STEPS, compressor_of
from _torch_cases import digest_of, give_gradients, run_torch_cases
from _torch_laws import optimizer_without_motion
from devices import carried, pretend
from devices.mutants import MUTANTS, undone
from torch import nn

from hvd_sparse.collectives import horovod_device
from hvd_sparse.collectives.horovod_device import HorovodDeviceCollective
from hvd_sparse.collectives.horovod_torch import HorovodTorchCollective
from hvd_sparse.configuration import PARTS
from hvd_sparse.errors import CorruptPayload, InvalidOption
from hvd_sparse.torch import Compression

NAME = os.environ.get("HVD_SPARSE_TEST_DEVICE", pretend.NAME)
DEVICE = pretend.load() if NAME == pretend.NAME else torch.device(NAME)
CPU = torch.device("cpu")
EARLY = os.environ.get("HOROVOD_ENABLE_ASYNC_COMPLETION", "0")
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
    """Make a case of a function that is run on the CPU, and on the device with both wires."""

    def case(name: str) -> dict[str, Any]:
        late(False)
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


def can_carry() -> bool:
    """Tell whether Horovod has NCCL, which wants a GPU of its own for every rank."""
    if is_pretend:
        return True
    return bool(hvd.nccl_built()) and torch.cuda.device_count() >= hvd.local_size()


def device_wire() -> AbstractContextManager[None]:
    """Let Horovod carry the device's tensors: it does so by itself where it has NCCL."""
    return carried.carrying() if is_pretend else nullcontext()


@contextmanager
def without_nccl() -> Iterator[None]:
    """Let Horovod say that it has no NCCL, as its builds for CPUs do."""
    own, hvd.nccl_built = hvd.nccl_built, lambda: False
    try:
        yield
    finally:
        hvd.nccl_built = own


def law(run: Run) -> Run:
    cases[run.__name__] = on_both(run)
    return run


def with_gradients(
    name: str, device: torch.device, compressor: Any, parameters: Any, dtype: torch.dtype
) -> dict[str, Any]:
    """Some steps of gradients that are the same every time."""
    optimizer = optimizer_without_motion(parameters, compressor)
    applied, waits, in_backward = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        drawn = [torch.from_numpy(each) for each in gradients_of(hvd.rank(), step)]
        chosen = {p: g.to(dtype).to(device) for p, g in zip(parameters.values(), drawn)}
        before = waited()
        give_gradients(chosen)
        in_backward.append(waited() - before)
        optimizer.step()
        waits.append(waited() - before)
        applied += [parameter.grad.cpu() for parameter in parameters.values()]
    stats = compressor.stats()
    found = {
        "applied": digest_of(applied),
        "ways": sorted(set(stats["ways"].values())),
        "wire": stats["wire"],
        "because": sorted(set(stats["staged_because"].values())),
        "parts": parts_of(compressor.configuration),
    }
    compressor.close()
    return found | {
        "waits": min(waits),  # of a step that found all it needs in its first pass
        "in_backward": max(in_backward),
        "is_finite": bool(torch.cat([a.flatten() for a in applied]).isfinite().all()),
    }


def parts_of(configuration: Any) -> list[str]:
    """The parts of a configuration, each as its kind and id."""
    parts = {kind: getattr(configuration, kind) for kind in PARTS}
    return [f"{kind} {part.id}" for kind, part in parts.items() if part is not None]


def method(case: str, **options: Any) -> Run:
    def run(name: str, device: torch.device) -> dict[str, Any]:
        parameters = {
            f"t{i}": nn.Parameter(torch.zeros(shape, device=device))
            for i, shape in enumerate(SHAPES)
        }
        given = {**SPARSE_ONLY, **options, "name": name}
        if case in STAYING:
            compressor = Compression.build(parameters.items(), **STAYING[case], **given)
        else:
            compressor = compressor_of(Compression, case, parameters.items(), **given)
        return with_gradients(name, device, compressor, parameters, torch.float32)

    return run


for each in (*METHODS, *BUILT, *STAYING):
    cases[each] = on_both(method(each))
cases["two_buckets"] = on_both(method("ldte_bs", groups=2))
for option, choice in OPTIONS.items():
    cases[f"option {option}"] = on_both(method("topk", **{option: choice}))


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
    amp = options.pop("amp", None)
    method = options.pop("method", Compression.ldte_bs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    named = list(model.named_parameters())
    compressor = method(
        named,
        name=name,
        **{"density": 0.1, "min_numel": 40, **options},
        **({"optimizer": optimizer} if handed else {}),
        **({"grad_scaler": scaler} if scaler is not None else {}),
        **({"grad_scaler": amp} if amp is not None else {}),
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
        loss = loss * (float("nan") if step in spoils and hvd.rank() == 0 else 1.0)
        (loss if amp is None else amp.scale(loss)).backward()
        optimizer.synchronize()
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
def a_grad_scaler(name: str, device: torch.device) -> dict[str, Any]:
    """torch's own, whose scale lies on the device, and falls where a gradient is not finite."""
    amp = torch.amp.GradScaler(device.type, init_scale=2.0**10, growth_interval=2)
    return train(name, device, amp=amp, spoils=(3,))


@law
def early_completion(name: str, device: torch.device) -> dict[str, Any]:
    """As where Horovod says that it is done before its results are there, on a side stream.

    A GPU's Horovod does so only where the variable was set when it was started.
    """
    os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = "1"
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    try:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            return train(name, device, num_groups=2)
    finally:
        os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = EARLY


@law
def a_dense_fall_back(name: str, device: torch.device) -> dict[str, Any]:
    """Messages that would be longer than the tensors: Horovod sums what the tensors hold."""
    return train(name, device, density=0.9)


@law
def auto_on_every_way(name: str, device: torch.device) -> dict[str, Any]:
    """Sparse, dense, float16 and everything, as a script says."""

    def scripted(named: Any, **options: Any) -> Any:
        compressor = Compression.auto(named, **options)
        compressor._policy.trial = Scripted(SCRIPT)
        return compressor

    return train(name, device, method=scripted)


@law
def an_elastic_run(name: str, device: torch.device) -> dict[str, Any]:
    """A commit, steps that are taken back, a new meeting of the ranks, and a file for all."""
    parameters = {"t": nn.Parameter(torch.zeros(30, 20, device=device))}
    compressor = Compression.topk(parameters.items(), density=0.1, name=name)
    optimizer = optimizer_without_motion(parameters, compressor)
    applied = []
    with tempfile.TemporaryDirectory() as folder:
        path = hvd.broadcast_object(folder, 0, name=f"{name}.folder") + "/state"
        for step in range(6):
            if step == 2:
                compressor.commit()
            if step == 4:
                compressor.go_back()
                compressor.rejoin()
                compressor.save(path)
                compressor.load(path)
            optimizer.zero_grad()
            drawn = torch.from_numpy(gradients_of(hvd.rank(), step % 4)[0]).float()
            give_gradients({parameters["t"]: drawn.to(device)})
            optimizer.step()
            applied.append(parameters["t"].grad.cpu())
        hvd.barrier()
    compressor.close()
    return {"applied": digest_of(applied)}


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


@cases
def refusals(name: str) -> dict[str, Any]:
    """A wire that cannot be, and what is said of it."""
    there, here = torch.zeros(30, 20, device=DEVICE), torch.zeros(30, 20)
    words = {}

    def refused(what: str, **tensors: torch.Tensor) -> None:
        try:
            Compression.topk(tensors.items(), density=0.1, name=f"{name}.{what}", wire="device")
        except InvalidOption as error:
            words[what] = str(error)

    with without_nccl():
        refused("no nccl", a=there)
    refused("host", a=there, b=here)
    return words


def lengths(name: str) -> dict[str, Any]:
    """What Horovod is given from step to step, and what the padding costs."""
    parameters = {"t": nn.Parameter(torch.zeros(100, 50, device=DEVICE))}
    shapes, messages = [], set()
    with carried.carrying():
        compressor = Compression.gaussian_k(parameters.items(), density=0.05, name=name)
        optimizer = optimizer_without_motion(parameters, compressor)
        for step in range(12):
            optimizer.zero_grad()
            before, sent = len(carried.given), compressor.stats()["payload_bytes"]
            draw = torch.Generator().manual_seed(10 * step + hvd.rank())
            give_gradients({parameters["t"]: torch.randn(100, 50, generator=draw).to(DEVICE)})
            optimizer.step()
            new = carried.given[before:]
            shapes.append([list(shape) for what, shape in new if what == "allgather"])
            messages.add(compressor.stats()["payload_bytes"] - sent)
        stats = compressor.stats()
        compressor.close()
    kept = ("payload_bytes", "padding_bytes", "carrier_bytes", "dense_bytes", "bytes_sent")
    return {"shapes": shapes, "messages": len(messages), **{key: stats[key] for key in kept}}


def streams(name: str) -> dict[str, bool]:
    """Whether messages arrive as they were sent where a result is late, and a wait is left out."""
    os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = "1"
    late(True)
    found = {}
    with carried.carrying():
        for kind in (HorovodDeviceCollective, Elsewhere, Impatient):
            wire = kind(hvd.global_process_set, DEVICE, lambda *_: None)
            array = np.arange(300, dtype=np.uint8)
            try:
                gathered = wire.allgather(array, f"{name}.{kind.__name__}").wait(30)
                found[kind.__name__] = gathered.tobytes() == hvd.size() * array.tobytes()
            except CorruptPayload:
                found[kind.__name__] = False
    late(False)
    os.environ["HOROVOD_ENABLE_ASYNC_COMPLETION"] = EARLY
    return found


class Elsewhere(HorovodDeviceCollective):
    """Submits on another stream than it has uploaded on."""

    def allgather(self, array: np.ndarray, name: str) -> Any:
        own, self._stream = self._stream, torch.Stream(DEVICE)
        upload = horovod_device.upload

        def there(block: np.ndarray, device: torch.device) -> torch.Tensor:
            torch.accelerator.set_stream(own)
            sent = upload(block, device)
            torch.accelerator.set_stream(self._stream)
            return sent

        horovod_device.upload = there
        try:
            return super().allgather(array, name)
        finally:
            horovod_device.upload = upload


class Impatient(HorovodDeviceCollective):
    """Fetches what Horovod says is done, and does not wait for the default stream."""

    def _fetch(self, *given: Any) -> torch.Tensor:
        catch_up, horovod_device.catch_up = horovod_device.catch_up, nothing
        try:
            return super()._fetch(*given)
        finally:
            horovod_device.catch_up = catch_up


if is_pretend:
    cases(lengths)
    cases(streams)


@cases
def collectives(name: str) -> dict[str, Any]:
    """All four, in a process set of this rank alone and in that of all; of no entries, too."""
    found: dict[str, Any] = {}
    alone = [each for each in process_sets if each.included()]
    if not can_carry():
        return found
    late(is_pretend)
    with device_wire():
        for each, process_set in zip(("all", "alone"), (hvd.global_process_set, *alone)):
            count: list[tuple[int, int]] = []
            here = HorovodTorchCollective(process_set)
            there = HorovodDeviceCollective(
                process_set, DEVICE, lambda *pair, count=count: count.append(pair)
            )
            results = [given_to(wire, f"{name}.{each}") for wire in (here, there)]
            found[each] = [results[0] == results[1], len(results[0]), len(count)]
    late(False)
    return found


def given_to(wire: Any, name: str) -> list[bytes]:
    """Return what each collective makes of arrays that differ between the ranks."""
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
                wire.broadcast(same, size - 1, f"{tag}.spread"),
                wire.allreduce(same, f"{tag}.sum"),
            ]
    return [each.wait(30).tobytes() for each in results]


def survives(mutant: str) -> Callable[[str], bool]:
    """Make a case of a broken engine: tell whether the device still gives the CPU's bits."""

    def case(name: str) -> bool:
        run = method("topk")
        expected = run(f"{name}.cpu", CPU)
        late(True)
        before = reused()
        try:
            with undone(), without_nccl():
                MUTANTS[mutant]()
                found = run(f"{name}.device", DEVICE)
        except Exception:  # a loud death
            return False
        finally:
            torch.accelerator.synchronize()
            late(False)
        return found["applied"] == expected["applied"] and reused() == before

    return case


if is_pretend:
    for each in MUTANTS:
        cases[f"mutant: {each}"] = survives(each)


if __name__ == "__main__":
    process_sets = [hvd.ProcessSet([rank]) for rank in range(2)]
    hvd.init(process_sets=process_sets)
    if not is_pretend:
        DEVICE = torch.device(NAME, hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(DEVICE)
    run_torch_cases(cases)
