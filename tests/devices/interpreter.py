"""Makes Triton's interpreter faster, in a process that does nothing else with Triton, and counts
the bytes that a GPU would move for its loads and stores."""

import inspect

import numpy as np
from devices.forbidden import Untraced
from triton import language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import interpreter_builder as builder

SECTOR = 32
"""Smallest number of bytes that a GPU moves at once."""
FILLS = ("zero_", "fill_", "zeros", "full", "ones")
NO_LAUNCH = (
    "empty",
    "view",
    "split",
    "slice",
    "detach",
    "unbind",
    "lift_fresh",
    "new_empty",
    "set_",
    "copy_",
)
"""Operations without a launch: they allocate, return a view, or copy to or from the host."""


class Transfers(Untraced):
    """While it is active, counts the sectors of every load and store, and the launches."""

    def __init__(self, *, of_torch=False):
        super().__init__()
        self._of_torch = of_torch
        self.bytes_moved = self.launches = 0

    def __enter__(self):
        self._own = builder.create_masked_load, builder.create_masked_store, builder.set_grid_dim
        load, store, set_dim = self._own

        def counted_load(pointers, mask, *rest):
            self._count(pointers, mask)
            return load(pointers, mask, *rest)

        def counted_store(pointers, value, mask, *rest):
            self._count(pointers, mask)
            return store(pointers, value, mask, *rest)

        def counted_launch(*dimensions):
            self.launches += 1
            set_dim(*dimensions)

        builder.create_masked_load, builder.create_masked_store = counted_load, counted_store
        builder.set_grid_dim = counted_launch
        return super().__enter__()

    def __exit__(self, *error):
        builder.create_masked_load, builder.create_masked_store, builder.set_grid_dim = self._own
        super().__exit__(*error)

    def _count(self, pointers, mask):
        used = np.asarray(pointers.data)[np.asarray(mask.data, bool)]
        self.bytes_moved += SECTOR * np.unique(used // SECTOR).size

    def __torch_dispatch__(self, operation, types, values=(), options=None):
        name = operation.overloadpacket.__name__
        result = operation(*values, **(options or {}))
        if name in FILLS:
            self.launches += 1
            self.bytes_moved += result.nbytes
        elif self._of_torch and not name.startswith(NO_LAUNCH):
            self.launches += 1
        elif not name.startswith(NO_LAUNCH):
            raise AssertionError(f"{name} is another launch, which nobody counted")
        return result


def change_the_language_once():
    """Let the interpreter replace the functions of Triton's language only once.

    By default, the interpreter replaces them before every program and before each function that a
    program calls, and restores them afterwards. For small programs, this takes most of the time.
    The results of programs do not change.
    """
    own, changed = interpreter._patch_lang, set()

    def change(function):
        values = function.__globals__.values()
        seen = frozenset(v.__name__ for v in values if inspect.ismodule(v) and v in (tl, tl.core))
        if seen in changed:
            return interpreter._LangPatchScope()  # of no changes
        changed.add(seen)
        scope = own(function)
        scope._changes.clear()
        return scope

    interpreter._patch_lang = change
