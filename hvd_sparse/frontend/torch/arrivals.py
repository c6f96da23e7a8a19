"""Which gradients are a compressor's results, and which came by another way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import torch

from hvd_sparse.errors import InvalidOption

logger = logging.getLogger("hvd_sparse")


class Arrivals:
    """Knows of every parameter whether its gradient is a result of the compressor.

    A gradient that autograd has added to since is none.

    Parameters
    ----------
    named : the compressor's pairs of name and parameter
    remedy : for gradients that should come through it, in words
    """

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]], remedy: str) -> None:
        self.remedy = remedy
        self._key_of = {parameter: key for key, parameter in named}
        self._is_result: dict[torch.Tensor, bool] = {}
        self._has_told = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(_renew(self._is_result))
            for _, parameter in named
            if parameter.requires_grad and parameter.is_leaf
        ]

    def note(self, parameter: torch.Tensor) -> None:
        """The compressor's result for a parameter takes the gradient's place."""
        self._is_result[parameter] = True

    def results_in(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the parameters whose gradient is a result."""
        return [p for p in parameters if p.grad is not None and self._is_result.get(p)]

    def others_in(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the parameters whose gradient came by another way.

        InvalidOption for one whose gradients came through the compressor before.
        """
        others = [p for p in parameters if p.grad is not None and not self._is_result.get(p)]
        for parameter in others:
            if parameter in self._is_result:
                assert parameter.grad is not None
                is_sparse = parameter.grad.is_sparse
                raise InvalidOption(
                    f"tensor {self._key_of[parameter]!r} has a gradient that did not come through "
                    "the compressor, which keeps the momentum of those that did: "
                    + (SPARSE_REMEDY if is_sparse else self.remedy)
                    + ", or leave out optimizer="
                )
        return others

    def tell_of(self, others: Sequence[torch.Tensor], name: str) -> None:
        """Say once that an optimizer updates some parameters by itself.

        Sparse gradients are left out, because Horovod exchanges them as ever.

        Parameters
        ----------
        others : parameters whose gradient came by another way
        name : of the optimizer's class
        """
        dense = [p for p in others if p.grad is not None and not p.grad.is_sparse]
        if self._has_told or not dense:
            return
        self._has_told = True
        first = dense[0]
        key = repr(self._key_of[first]) if first in self._key_of else f"of shape {[*first.shape]}"
        logger.warning(
            "tensor %s%s has a gradient that came through no compressor: %s updates it by itself, "
            "and nothing has averaged the gradient over the ranks unless the program did",
            key,
            f", with {len(dense) - 1} others," if len(dense) > 1 else "",
            name,
        )

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()


SPARSE_REMEDY = "give Horovod's optimizer sparse_as_dense=True"


def _renew(is_result: dict[torch.Tensor, bool]) -> Callable[[torch.Tensor], None]:
    """Return a hook that does not keep the compressor alive."""

    def renew(parameter: torch.Tensor) -> None:
        if parameter in is_result:
            is_result[parameter] = False

    return renew
