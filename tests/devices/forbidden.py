"""Operations that wait for a device without an explicit wait of the program, and a mode that
detects them."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NEED_THE_HOST = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique_consecutive",
    "_unique2",
    "equal",
    "bincount",
    "histc",
    "topk",  # which of equal entries it takes is the device's affair
    "scatter_add",  # by atomics: floats in any order
    "index_add",
}
"""Forbidden operations: the size of their result depends on the data, or they return a Python
number, or their bits depend on the order of threads."""


class Untraced(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        """Return False: nothing is traced here, and torch would load its compiler to find this
        out."""
        return False


class Watch(Untraced):
    """While it is active, stores the names of all forbidden operations that run."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, operation, types, values=(), options=None):
        options = options or {}
        name = operation.overloadpacket.__name__
        of_one_kind = name if name.startswith("_") else name.rstrip("_")
        tensors = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
        if of_one_kind in NEED_THE_HOST:
            self.found.append(name)
        if name == "repeat_interleave" and options.get("output_size") is None:
            self.found.append(name)
        has_mask = any(tensor.dtype == torch.bool for tensor in tensors[1:])
        if of_one_kind in ("index", "index_put") and has_mask:
            self.found.append(f"{name} with a mask")
        return operation(*values, **options)
