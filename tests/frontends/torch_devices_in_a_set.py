"""Worker, under mpirun with three ranks: two of them train on the pretend device."""

from __future__ import annotations

import os
from typing import Any

os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"  # before Horovod is started
import horovod.torch as hvd
from _common import Cases
from _device_laws import train
from _device_runs import on_both
from _torch_cases import run

cases = Cases()
pair = hvd.add_process_set([0, 2])


@cases
def a_process_set(name: str) -> dict[str, Any]:
    if not pair.included():
        return {}
    return on_both(lambda each, device: train(each, device, process_set=pair))(name)


if __name__ == "__main__":
    run(cases)
