"""Vectors in a device's memory, and copies between the device and the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NoReturn, Union

import numpy as np
import torch

try:
    import greenlet
except ImportError:
    greenlet = None

LOW = 0xFFFFFFFF
"""Mask that removes the sign of indices that were converted from int32 to int64. They are copied as
int32, because torch has few operations on uint32."""


def numpy_dtype(tensor: torch.Tensor) -> np.dtype:
    return np.dtype(np.float64 if tensor.dtype == torch.float64 else np.float32)


class DeviceVector:
    """A 1-D, contiguous vector on a device. It has the operators and methods of numpy arrays that
    selectors and memories use. Passing it to a function of numpy raises TypeError."""

    __slots__ = ("dtype", "tensor")
    __array_ufunc__ = None  # makes numpy's operators raise TypeError

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.dtype = numpy_dtype(tensor)

    @property
    def size(self) -> int:
        return int(self.tensor.numel())

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __getitem__(self, where: slice | np.ndarray) -> Vector:
        """Return a slice as a DeviceVector, or the entries at given indices as a numpy array."""
        if isinstance(where, slice):
            return DeviceVector(self.tensor[where])
        return fetch(self.tensor[upload_indices(where, self.tensor.device)])

    def __setitem__(self, where: slice | np.ndarray, values: object) -> None:
        if isinstance(values, np.ndarray):
            values = upload(values, self.tensor.device)
        elif isinstance(values, DeviceVector):
            values = values.tensor
        if isinstance(where, slice):
            self.tensor[where] = values
            return
        places = upload_indices(where, self.tensor.device)
        if isinstance(values, float):  # here an assignment would wait for the device
            self.tensor.index_fill_(0, places, values)
        else:
            self.tensor[places] = values

    def __add__(self, other: DeviceVector) -> DeviceVector:
        return DeviceVector(self.tensor + other.tensor)

    def __truediv__(self, number: np.floating) -> DeviceVector:
        # Divide by a tensor, because some devices multiply by a number's rounded reciprocal.
        like = {"dtype": self.tensor.dtype, "device": self.tensor.device}
        return DeviceVector(self.tensor / torch.full((), float(number), **like))

    def __mul__(self, number: np.floating) -> DeviceVector:
        return DeviceVector(self.tensor * float(number))

    def write_maximum(self, x: DeviceVector, y: DeviceVector) -> None:
        torch.maximum(x.tensor, y.tensor, out=self.tensor)

    def add_at(self, indices: np.ndarray, values: np.ndarray) -> None:
        places = upload_indices(indices, self.tensor.device)
        self.tensor[places] = self.tensor[places] + upload(values, self.tensor.device)

    def copy(self) -> np.ndarray:
        return fetch(self.tensor.clone())

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        raise TypeError(
            f"a vector of {self.size} entries on {self.tensor.device} was given to a function of "
            "numpy: use the kernels, or copy() it to the host"
        )


Vector = Union[np.ndarray, DeviceVector]
"""Type of the vectors for this engine's kernels. An array on the host is used as a CPU tensor."""


def tensor_of(x: Vector) -> torch.Tensor:
    """Return a torch tensor that shares the vector's memory, or for a read-only array a copy."""
    if isinstance(x, DeviceVector):
        return x.tensor
    # Make a new array, because one of one entry may have a negative stride, which torch refuses.
    return torch.from_numpy(np.ndarray(x.size, x.dtype, x) if x.flags.writeable else x.copy())


def rounded(x: torch.Tensor, threshold: float) -> float:
    if x.dtype == torch.float64:
        return threshold
    with np.errstate(over="ignore"):
        return float(np.float32(threshold))


def reaching(x: torch.Tensor, magnitudes: torch.Tensor, threshold: float) -> torch.Tensor:
    cut = rounded(x, threshold)
    return magnitudes > 0 if cut <= 0 else magnitudes >= cut


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # The program may have made another device the default.
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


class Copy:
    """A copy of a device's tensor in pinned host memory. The copying starts at once. A CPU tensor
    is not copied."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._is_read = tensor.device.type == "cpu"
        if self._is_read:
            self._host = tensor
            return
        self._host = pinned(tensor.shape, tensor.dtype)
        self._host.copy_(tensor, non_blocking=True)
        self._done = torch.accelerator.current_stream(tensor.device).record_event()

    def is_here(self) -> bool:
        return self._is_read or bool(self._done.query())

    def array(self) -> np.ndarray:
        if not self._is_read:
            if not self._done.query():
                wait_until(self._done)  # until then, the host's memory lacks the entries
            self._is_read = True
        array: np.ndarray = self._host.numpy()
        return array


def wait_until(done: torch.Event) -> None:
    done.synchronize()


def stream_of(device: torch.device) -> torch.Stream | None:
    return None if device.type == "cpu" else torch.accelerator.current_stream(device)


def follow(stream: torch.Stream | None) -> None:
    """Make this thread's current stream wait for another stream. The host does not wait. None, the
    stream of a CPU, needs no wait."""
    if stream is not None:
        here = torch.accelerator.current_stream(stream.device)
        if here != stream:
            here.wait_stream(stream)


def fetch(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's entries as a numpy array: a copy, or for a CPU tensor a view. If the caller
    is a task of ``run_together``, all tasks share one copy and one wait for the device."""
    walk = None if tensor.device.type == "cpu" else current_walk()
    return Copy(tensor).array() if walk is None else walk.parent.switch(tensor)


def fetch_all(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return tensors, of 4 or 8 bytes an entry, as numpy arrays on the host. All tensors of a
    device share one copy and one wait. Do not reuse the tensors: the array of a CPU tensor may
    share its memory."""
    if len(tensors) == 1:
        return [fetch(tensors[0])]
    found: list[np.ndarray] = [np.empty(0)] * len(tensors)
    for device in dict.fromkeys(each.device for each in tensors):
        there = [i for i, each in enumerate(tensors) if each.device == device]
        pieces = [tensors[i].contiguous().view(-1).view(torch.int32) for i in there]
        together, places = in_one(pieces)
        words = fetch(together)
        for i, place in zip(there, places):
            dtype = torch.empty(0, dtype=tensors[i].dtype, device="cpu").numpy().dtype
            found[i] = words[place].view(dtype).reshape(tuple(tensors[i].shape))
    return found


def in_one(pieces: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[slice]]:
    """Concatenate int32 tensors. Return the whole tensor, and the slice of it that each given
    tensor occupies. Every slice starts at a multiple of 8 bytes, so that it can be viewed as 8-byte
    numbers."""
    padded = [torch.nn.functional.pad(each, (0, each.numel() % 2)) for each in pieces]
    starts = accumulate((each.numel() for each in padded), initial=0)
    places = [slice(start, start + each.numel()) for start, each in zip(starts, pieces)]
    return torch.cat(padded), places


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on the device, without waiting until its copy is complete. Until
    then, torch's allocator keeps the pinned memory from which the array is copied. On the CPU, the
    tensor shares the array's memory unless the array is read-only."""
    if device.type == "cpu":
        return tensor_of(array)
    host = pinned(array.shape, torch.from_numpy(array[:0].copy()).dtype)
    host.numpy()[...] = array
    return host.to(device, non_blocking=True)


def upload_indices(indices: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return uint32 indices as an int64 tensor on the device. They are copied to the device as 4
    bytes each, and converted there."""
    words = np.ascontiguousarray(indices, np.uint32).view(np.int32)
    return upload(words, device).to(torch.int64).bitwise_and_(LOW)


Task = Callable[[], None]
FetchAll = Callable[[Sequence[torch.Tensor]], Sequence[np.ndarray]]


def can_stop() -> bool:
    return greenlet is not None


def current_walk() -> Any:
    """Return the greenlet of ``run_together`` that runs the caller; None if there is none."""
    here = None if greenlet is None else greenlet.getcurrent()
    return here if hasattr(here, "is_walk") else None


def run_together(tasks: Sequence[Task], fetch_all: FetchAll) -> None:
    """Run independent tasks, which must not raise. Each runs until it waits for a device tensor.
    When all of them wait, ``fetch_all`` copies their tensors together, and the tasks continue. If
    greenlet is not installed, the tasks run one after the other, each with its own waits."""
    if greenlet is None or len(tasks) == 1:
        for task in tasks:
            task()
        return
    walks = [greenlet.greenlet(task) for task in tasks]
    for walk in walks:
        walk.is_walk = True
    # A walk that pauses returns the tensor that it waits for, and one that ends returns None.
    questions = [walk.switch() for walk in walks]
    while asking := [each for each in zip(walks, questions) if each[1] is not None]:
        walks = [walk for walk, _ in asking]
        try:
            answers = fetch_all([tensor for _, tensor in asking])
        except Exception as error:  # raise it in each task, which reports it
            questions = [walk.throw(error) for walk in walks]
        else:
            questions = [walk.switch(answer) for walk, answer in zip(walks, answers)]
