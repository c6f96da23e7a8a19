"""Worker, under mpirun: compares gradients on the pretend device with the same on the CPU, and the
tensors that Horovod gets by both wires. Broken engines and wires must be detected.

``_device_runs`` describes the environment variables. With the argument "set", two of three ranks
train.
"""

import os

import horovod.torch as hvd
import numpy as np
import torch
from _device_laws import train  # and the module's laws, which are cases
from _device_runs import (
    DEVICE,
    EARLY,
    IN_A_SET,
    can_carry,
    cases,
    device_wire,
    is_pretend,
    late,
    method,
    nothing,
    on_both,
    process_sets,
    with_gradients,
    without_nccl,
)
from _method_cases import BUILT, METHODS, OPTIONS_ON_DEVICES, SHAPES, STAYING
from _torch_cases import give_gradients, optimizer_without_motion, run
from devices import carried
from torch import nn

from hvd_sparse.collectives import horovod_torch
from hvd_sparse.collectives.horovod_torch import HorovodDeviceCollective, HorovodTorchCollective
from hvd_sparse.errors import InvalidOption
from hvd_sparse.torch import Compression

for each in (*METHODS, *BUILT, *STAYING):
    cases[each] = on_both(method(each))
cases["two_buckets"] = on_both(method("ldte_bs", groups=2))
for option, choice in OPTIONS_ON_DEVICES.items():
    cases[f"option {option}"] = on_both(method("topk", **{option: choice}))


def of_dtype(dtype):
    def run(name, device):
        parameters = {
            f"t{i}": nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
            for i, shape in enumerate(SHAPES)
        }
        compressor = Compression.topk(parameters.items(), density=0.2, name=name, min_numel=20)
        return with_gradients(name, device, compressor, parameters, dtype)

    return run


for kind in (torch.float64, torch.float16, torch.bfloat16):
    cases[str(kind).removeprefix("torch.")] = on_both(of_dtype(kind))


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


def a_process_set(name):
    pair = hvd.add_process_set([0, 2])
    each = on_both(lambda place, device: train(place, device, process_set=pair))
    return each(name) if pair.included() else {}


if __name__ == "__main__":
    run({"a_process_set": a_process_set} if IN_A_SET else cases)
