"""Accumulation: the effect of a step's backward passes on the parameters' gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge


class Accumulation:
    """Records which parameters a step used, and whose gradients held a result when it began.

    A step's passes are those inside ``no_sync()`` and the one after them.  Autograd calls the nodes
    that accumulate gradients before DDP, so a bucket's record is complete when its hook is called.

    Parameters
    ----------
    parameters : those that DDP reduces
    asks_for_results : whether a gradient that holds a result matters; reading it costs a pass

    Attributes
    ----------
    used : positions of the parameters that this step used, as DDP counts them
    kept : positions of those whose gradients held a result when this step began
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *, asks_for_results: bool) -> None:
        self._parameters = parameters
        self._asks = asks_for_results
        self._untouched: set[int] = set()
        self.used: set[int] = set()
        self.kept: set[int] = set()
        self._hooks = [
            get_gradient_edge(parameter).node.register_prehook(_noting(weakref.ref(self), position))
            for position, parameter in enumerate(parameters)
        ]

    def note(self, position: int, has_come: bool) -> None:
        """Note that a parameter's node is about to accumulate, or is called without a gradient."""
        gradient = self._parameters[position].grad
        if position in self._untouched:
            self._untouched.discard(position)
            if gradient is not None and bool(gradient.any()):
                self.kept.add(position)
        # DDP counts a call without a gradient, too, where there is a gradient of an earlier pass.
        if has_come or gradient is not None:
            self.used.add(position)

    def holds_result(self, position: int, gradient: torch.Tensor) -> bool:
        """Tell whether a bucket's gradient has a result in it, in which it must not be.

        Parameters
        ----------
        position : of the parameter
        gradient : the bucket's
        """
        # A parameter that no pass has used gives the bucket whatever its gradient holds.
        is_left = position in self._untouched and bool(gradient.any())
        return is_left or position in self.kept

    def end(self) -> None:
        """Begin the next step: the results of this one are about to be in the gradients."""
        self.used.clear()
        self.kept.clear()
        if self._asks:
            self._untouched.update(range(len(self._parameters)))

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()


def _noting(owner: Callable[[], Accumulation | None], position: int) -> Callable[[Any], None]:
    """Return a node's hook that does not keep the compressor alive."""

    def note(gradients: Any) -> None:
        accumulation = owner()
        if accumulation is not None:
            accumulation.note(position, gradients[0] is not None)

    return note
