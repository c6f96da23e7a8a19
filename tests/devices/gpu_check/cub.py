"""``cub::DeviceTopK``, compiled by the machine's nvcc: a baseline of ``scripts/gpu-check``."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import torch
from devices.gpu_check.page import Result

NAME = "cub::DeviceTopK beside the times"
SOURCE = Path(__file__).with_name("cub_topk.cu")
HEADER = "cub/device/device_topk.cuh"
LIMIT_S = 600
NO_COMPILER = "there is no nvcc, which compiles it: CUDA_HOME or PATH says where one is"
NO_HEADER = (
    f"no {HEADER} beside nvcc: CCCL has it from 3.3 on; CCCL=... is a folder with newer headers"
)


def compiler() -> str | None:
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=f"{home}/bin") if home else shutil.which("nvcc")


def build(folder: Path, architecture: str = "native") -> tuple[Result, Path | None]:
    nvcc, library = compiler(), folder / "libcub_topk.so"
    if nvcc is None:
        return Result(NAME, "NOT RUN", NO_COMPILER), None
    newer = os.environ.get("CCCL")
    headers = ["-I", newer] if newer else []
    flags = ["-O3", "-std=c++17", f"-arch={architecture}", "-shared", "-Xcompiler", "-fPIC"]
    command = [nvcc, *flags, *headers, str(SOURCE), "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Result(NAME, "NOT RUN", f"nvcc was not done after {LIMIT_S} s"), None
    if done.returncode == 0:
        return Result(NAME, "passed", f"compiled by {nvcc}"), library
    if f"{HEADER}: No such file" in done.stderr:
        return Result(NAME, "NOT RUN", NO_HEADER), None
    return Result(NAME, "FAILED", f"nvcc does not compile it: {done.stderr[-3000:]}"), None


class CubTopK:
    """Selects the largest magnitudes of one tensor; can be called repeatedly."""

    def __init__(self, library: str, entries: torch.Tensor, count: int) -> None:
        function = ctypes.CDLL(library).largest_magnitudes
        function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
        self._function, self._entries = function, entries
        self.magnitudes = entries.new_empty(count)
        self.places = torch.empty(count, dtype=torch.int32, device=entries.device)
        self._nbytes = ctypes.c_size_t(0)
        self._storage: torch.Tensor | None = None
        self.run()
        self._storage = torch.empty(self._nbytes.value, dtype=torch.uint8, device=entries.device)

    def run(self) -> None:
        code = self._function(
            None if self._storage is None else self._storage.data_ptr(),
            ctypes.byref(self._nbytes),
            self._entries.data_ptr(),
            self.magnitudes.data_ptr(),
            self.places.data_ptr(),
            self._entries.numel(),
            self.places.numel(),
            torch.cuda.current_stream(self._entries.device).cuda_stream,
        )
        if code:
            raise RuntimeError(f"cub::DeviceTopK gave CUDA's error {code}")
