"""Accumulation: the effect of a step's backward passes on the parameters' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from hvd_sparse.frontend.torch.hooks import remove, weakly


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
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *, asks_for_results: bool) -> None:
        self._parameters = parameters
        self._asks = asks_for_results
        self._untouched: set[int] = set()
        self.used: set[int] = set()
        self._kept: set[int] = set()  # whose gradients held a result when this step began
        self._hooks = [
            get_gradient_edge(parameter).node.register_prehook(weakly(self._note, position))
            for position, parameter in enumerate(parameters)
        ]

    def _note(self, position: int, gradients: Any) -> None:
        """A parameter's node is about to accumulate, or is called without a gradient."""
        gradient = self._parameters[position].grad
        if position in self._untouched:
            self._untouched.discard(position)
            if gradient is not None and bool(gradient.any()):
                self._kept.add(position)
        # DDP counts a call without a gradient, too, where there is a gradient of an earlier pass.
        if gradients[0] is not None or gradient is not None:
            self.used.add(position)

    def holds_result(self, position: int, gradient: torch.Tensor) -> bool:
        """Return whether a bucket's gradient wrongly holds an earlier result."""
        # A parameter that no pass has used gives the bucket whatever its gradient holds.
        is_left = position in self._untouched and bool(gradient.any())
        return is_left or position in self._kept

    def end(self) -> None:
        """Begin the next step: the results of this one are about to be in the gradients."""
        self.used.clear()
        self._kept.clear()
        if self._asks:
            self._untouched.update(range(len(self._parameters)))

    def close(self) -> None:
        """Take the hooks away."""
        remove(self._hooks)
