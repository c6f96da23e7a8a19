"""Worker, under mpirun: compares gradients on the pretend device with the same on the CPU.

``_device_runs`` describes the environment variables. With the argument "set", two of three ranks
train.
"""

import _device_laws  # its laws are cases
import _device_wires  # noqa: F401
import horovod.torch as hvd
import torch
from _device_runs import IN_A_SET, cases, method, on_both, with_gradients
from _method_cases import BUILT, METHODS, OPTIONS_ON_DEVICES, SHAPES, STAYING
from _torch_cases import run
from torch import nn

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


def a_process_set(name):
    pair = hvd.add_process_set([0, 2])
    train = _device_laws.train
    each = on_both(lambda place, device: train(place, device, process_set=pair))
    return each(name) if pair.included() else {}


if __name__ == "__main__":
    run({"a_process_set": a_process_set} if IN_A_SET else cases)
