"""Vectors in a device's memory, and the two ways between it and the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Union

import numpy as np
import torch

from hvd_sparse.kernels.torch.together import current_walk

LOW = 0xFFFFFFFF
"""The bits of an index: torch has hardly an operation on uint32, so indices are int64 there."""


class DeviceVector:
    """A vector on a device, with the part of numpy's interface that the core uses.

    It has a size and a dtype, parts of it are vectors, and its entries at indices come to the host
    and go back. Vectors are added, and multiplied and divided by numbers. numpy's functions raise
    TypeError.

    tensor : 1-D, contiguous, float32 or float64
    """

    __slots__ = ("dtype", "tensor")
    __array_ufunc__ = None  # numpy's operators leave it alone

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.dtype = np.dtype(np.float64 if tensor.dtype == torch.float64 else np.float32)

    @property
    def size(self) -> int:
        return int(self.tensor.numel())

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, where: slice | np.ndarray) -> Vector:
        """Return a part, or the entries at indices as an array of the host."""
        if isinstance(where, slice):
            return DeviceVector(self.tensor[where])
        return fetch(self.tensor[upload_indices(where, self.tensor.device)])

    def __setitem__(self, where: slice | np.ndarray, values: object) -> None:
        if isinstance(values, np.ndarray):
            values = upload(values, self.tensor.device)
        elif isinstance(values, DeviceVector):
            values = values.tensor
        if not isinstance(where, slice):
            where = upload_indices(where, self.tensor.device)
        self.tensor[where] = values

    def __add__(self, other: DeviceVector) -> DeviceVector:
        return DeviceVector(self.tensor + other.tensor)

    def __truediv__(self, number: np.floating) -> DeviceVector:
        # By a tensor: by a number, some devices multiply with its reciprocal.
        like = {"dtype": self.tensor.dtype, "device": self.tensor.device}
        return DeviceVector(self.tensor / torch.full((), float(number), **like))

    def __mul__(self, number: np.floating) -> DeviceVector:
        return DeviceVector(self.tensor * float(number))

    def empty_like(self) -> DeviceVector:
        return DeviceVector(torch.empty_like(self.tensor))

    def write_maximum(self, x: DeviceVector, y: DeviceVector) -> None:
        """Write the elementwise maximum; NaN if either entry is."""
        torch.maximum(x.tensor, y.tensor, out=self.tensor)

    def copy(self) -> np.ndarray:
        """Return all entries as an array of the host."""
        return fetch(self.tensor.clone())

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        raise TypeError(
            f"a vector of {self.size} entries on {self.tensor.device} was given to a function of "
            "numpy: use the kernels, or copy() it to the host"
        )


Vector = Union[np.ndarray, DeviceVector]
"""What the kernels of this engine are given; an array of the host is a tensor of the CPU."""


def tensor_of(x: Vector) -> torch.Tensor:
    """Return the vector's tensor; of an array, in its own memory unless that is read-only."""
    if isinstance(x, DeviceVector):
        return x.tensor
    # Made anew: an array of one entry may have any stride, and torch takes no negative one.
    return torch.from_numpy(np.ndarray(x.size, x.dtype, x) if x.flags.writeable else x.copy())


def rounded(x: torch.Tensor, threshold: float) -> float:
    """Return the threshold in the vector's dtype; infinite where it is too large for it."""
    if x.dtype == torch.float64:
        return threshold
    with np.errstate(over="ignore"):
        return float(np.float32(threshold))


def reaching(x: torch.Tensor, magnitudes: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return a mask of the magnitudes that are at least the rounded threshold; zeros never are."""
    cut = rounded(x, threshold)
    return magnitudes >= cut if cut > 0 else magnitudes > 0


class Copy:
    """A copy of a device's tensor, made for this, on its way to pinned memory; of the CPU,
    itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._is_read = tensor.device.type == "cpu"
        if self._is_read:
            self._host = tensor
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._done = torch.accelerator.current_stream(tensor.device).record_event()

    def is_here(self) -> bool:
        return self._is_read or bool(self._done.query())

    def array(self) -> np.ndarray:
        """Return the entries as an array of the host, and wait for them the first time."""
        if not self._is_read:
            if not self._done.query():
                wait_until(self._done)  # before it, the host's memory holds anything
            self._is_read = True
        array: np.ndarray = self._host.numpy()
        return array


def wait_until(done: torch.Event) -> None:
    done.synchronize()


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what this thread's current stream was given."""
    torch.accelerator.current_stream(device).synchronize()


def stream_of(device: torch.device) -> torch.Stream | None:
    """Return this thread's current stream of a device; None for the CPU."""
    return None if device.type == "cpu" else torch.accelerator.current_stream(device)


def follow(stream: torch.Stream | None) -> None:
    """Let this thread's current stream wait for what another one has been given; the host does
    not."""
    if stream is not None:
        here = torch.accelerator.current_stream(stream.device)
        if here != stream:
            here.wait_stream(stream)


def fetch(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's entries as an array of the host: one copy, and one wait for the device.

    In a walk beside others (``together``) both are shared.  On the CPU the array is the tensor's
    memory, so the tensor must have been made for this.
    """
    array: np.ndarray
    if tensor.device.type == "cpu":
        array = tensor.numpy()
        return array
    walk = current_walk()
    if walk is not None:
        return walk.ask(tensor)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    wait_for(tensor.device)  # before it, the host's memory holds anything
    array = host.numpy()
    return array


def fetch_all(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return tensors of devices as arrays of the host: one copy and one wait a device.

    tensors : made for this, with entries of 4 or 8 bytes
    """
    if len(tensors) == 1:
        return [fetch(tensors[0])]
    found: list[np.ndarray] = [np.empty(0)] * len(tensors)
    for device in dict.fromkeys(each.device for each in tensors):
        places = [i for i, each in enumerate(tensors) if each.device == device]
        # Every piece begins at a multiple of 8 bytes, where any entry may.
        pieces = [tensors[i].contiguous().view(-1).view(torch.int32) for i in places]
        even = [torch.nn.functional.pad(each, (0, each.numel() % 2)) for each in pieces]
        words, start = fetch(torch.cat(even)), 0
        for i, piece, padded in zip(places, pieces, even):
            array = words[start : start + piece.numel()]
            dtype = torch.empty(0, dtype=tensors[i].dtype).numpy().dtype
            found[i] = array.view(dtype).reshape(tuple(tensors[i].shape))
            start += padded.numel()
    return found


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return an array's entries on the device, without a wait.

    The array may be written to at once: the copy reads pinned memory of its own, which torch's
    allocator keeps until it is done.
    """
    if device.type == "cpu":
        return tensor_of(array)
    host = torch.empty(array.shape, dtype=torch.from_numpy(array[:0].copy()).dtype, pin_memory=True)
    host.numpy()[...] = array
    return host.to(device, non_blocking=True)


def upload_indices(indices: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return indices on the device, int64; four bytes each on the way."""
    words = np.ascontiguousarray(indices, np.uint32).view(np.int32)
    return upload(words, device).to(torch.int64).bitwise_and_(LOW)
