"""Rules of the workers: what is accumulated of a tensor's gradients, and what is sent of it.

All workers' vectors of one tensor are the rows of one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

BETA1, BETA2, EPSILON, MOMENTUM = 0.9, 0.999, 1e-8, 0.9

Choice = Callable[[torch.Tensor, int], torch.Tensor]
"""Makes of the workers' accumulated rows, and the entries that each may send, indices by row."""


def largest(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of each row's largest magnitudes."""
    return rows.abs().topk(count, dim=1, sorted=False).indices


def drawn_from_largest(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return rTop-k's: drawn from four times as many of the largest."""
    wide = largest(rows, min(4 * count, rows.shape[1]))
    drawn = torch.rand(wide.shape).topk(count, dim=1, sorted=False).indices
    return wide.gather(1, drawn)


def at(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return zeros but for the entries that were chosen."""
    return torch.zeros_like(rows).scatter_(1, indices, rows.gather(1, indices))


class Worker:
    """What all workers keep of one tensor.

    Parameters
    ----------
    workers, numel : rows and columns of what is kept
    choice : of the entries to send
    """

    def __init__(self, workers: int, numel: int, choice: Choice = largest) -> None:
        self.shape, self.choice = (workers, numel), choice

    def send(self, gradients: torch.Tensor, count: int, step: int) -> torch.Tensor:
        """Return the mean of what the workers send.

        Parameters
        ----------
        gradients : a row a worker
        count : entries that each may send
        step : of the training, from 1
        """
        raise NotImplementedError


class ErrorFeedback(Worker):
    """Accumulate gradients.

    Parameters
    ----------
    decay : by which the residual is multiplied before every step
    """

    def __init__(
        self, workers: int, numel: int, choice: Choice = largest, decay: float = 1.0
    ) -> None:
        super().__init__(workers, numel, choice)
        self.decay, self.residual = decay, torch.zeros(self.shape)

    def send(self, gradients: torch.Tensor, count: int, step: int) -> torch.Tensor:
        self.residual.mul_(self.decay).add_(self.direction(gradients, step))
        indices = self.choose(gradients, count)
        sent = at(self.residual, indices)
        self.residual.scatter_(1, indices, 0.0)
        self.forget(indices)
        return sent.mean(0)

    def direction(self, gradients: torch.Tensor, step: int) -> torch.Tensor:
        """Return what is accumulated of the gradients."""
        return gradients

    def choose(self, gradients: torch.Tensor, count: int) -> torch.Tensor:
        """Return the indices to send, by row."""
        return self.choice(self.residual, count)

    def forget(self, indices: torch.Tensor) -> None:
        """Take note of what is sent."""


class MomentumCorrection(ErrorFeedback):
    """DGC's: accumulate velocities, which are masked where they are sent."""

    is_masked = True

    def __init__(
        self, workers: int, numel: int, choice: Choice = largest, decay: float = 1.0
    ) -> None:
        super().__init__(workers, numel, choice, decay)
        self.velocity = torch.zeros(self.shape)

    def direction(self, gradients: torch.Tensor, step: int) -> torch.Tensor:
        return self.velocity.mul_(MOMENTUM).add_(gradients)

    def forget(self, indices: torch.Tensor) -> None:
        if self.is_masked:
            self.velocity.scatter_(1, indices, 0.0)


class Unmasked(MomentumCorrection):
    """The same, whose velocities go on where they were sent."""

    is_masked = False


class WholeMomentum(ErrorFeedback):
    """Accumulate each gradient with all the momentum that it will ever have."""

    def direction(self, gradients: torch.Tensor, step: int) -> torch.Tensor:
        return gradients / (1 - MOMENTUM)


class AdamCorrection(ErrorFeedback):
    """Accumulate gradients over the root of the second moment that their average would have."""

    def __init__(
        self, workers: int, numel: int, choice: Choice = largest, decay: float = 1.0
    ) -> None:
        super().__init__(workers, numel, choice, decay)
        self.mean, self.square = torch.zeros(self.shape), torch.zeros(self.shape)

    def direction(self, gradients: torch.Tensor, step: int) -> torch.Tensor:
        self.mean.lerp_(gradients, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(gradients, gradients, value=1 - BETA2)
        mean = self.mean / (1 - BETA1**step)
        square = self.square / (1 - BETA2**step)
        ranks = self.shape[0]
        average = square / ranks + (1 - 1 / ranks) * torch.minimum(mean.square(), square)
        return gradients / (average.sqrt() + EPSILON)


class ByFirstMoments(ErrorFeedback):
    """SCAPE's idea: entries are chosen by first moments, of what error feedback accumulates."""

    def __init__(self, workers: int, numel: int) -> None:
        super().__init__(workers, numel)
        self.mean = torch.zeros(self.shape)

    def choose(self, gradients: torch.Tensor, count: int) -> torch.Tensor:
        self.mean.lerp_(gradients, 1 - BETA1)
        return largest(self.mean, count)


class MomentumByFirstMoments(MomentumCorrection):
    """The same with DGC's correction."""

    choose = ByFirstMoments.choose

    def __init__(self, workers: int, numel: int) -> None:
        super().__init__(workers, numel)
        self.mean = torch.zeros(self.shape)


class AdamByFirstMoments(AdamCorrection):
    """The same with Adam's correction, whose first moments are there already."""

    def choose(self, gradients: torch.Tensor, count: int) -> torch.Tensor:
        return largest(self.mean, count)


class Regularized:
    """RegTop-k: entries that the others cancelled in the last step count for less.

    Of an entry that was sent, delta = (what arrived - a worker's share of it) / its share of what
    it would send now; its magnitude is multiplied with tanh(|1 + delta| / mu).

    Parameters
    ----------
    mu : of the paper
    """

    def __init__(self, mu: float = 1.0) -> None:
        self.mu = mu
        self._last: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def __call__(self, rows: torch.Tensor, count: int) -> torch.Tensor:
        weights = rows.abs()
        ranks = rows.shape[0]
        if self._last is not None:
            indices, shares, arrived = self._last
            now = rows.gather(1, indices) / ranks
            delta = (arrived[indices] - shares) / torch.where(now == 0, torch.inf, now)
            weighed = weights.gather(1, indices) * torch.tanh((1 + delta).abs() / self.mu)
            weights.scatter_(1, indices, weighed)
        indices = largest(weights, count)
        shares = rows.gather(1, indices) / ranks
        self._last = indices, shares, at(rows, indices).mean(0)
        return indices


class Ef21(Worker):
    """EF21-SGDM: send differences of momenta to what the others hold of them.

    Parameters
    ----------
    scale : of what is applied, so that rates mean what they do for the others
    """

    def __init__(self, workers: int, numel: int, scale: float = 1 / (1 - MOMENTUM)) -> None:
        super().__init__(workers, numel)
        self.scale = scale
        self.momentum, self.held = torch.zeros(self.shape), torch.zeros(self.shape)

    def send(self, gradients: torch.Tensor, count: int, step: int) -> torch.Tensor:
        self.momentum.lerp_(gradients, 1 - MOMENTUM)
        change = self.momentum - self.held
        self.held += at(change, self.choice(change, count))
        return self.scale * self.held.mean(0)


class Decoupled(Worker):
    """DeMo's decoupled momentum: what is sent leaves the momentum, and its sign is applied.

    The paper's transform (DCT of chunks) is left out: entries are chosen as they are.
    """

    def __init__(self, workers: int, numel: int, decay: float = 0.999) -> None:
        super().__init__(workers, numel)
        self.decay, self.momentum = decay, torch.zeros(self.shape)

    def send(self, gradients: torch.Tensor, count: int, step: int) -> torch.Tensor:
        self.momentum.mul_(self.decay).add_(gradients)
        sent = at(self.momentum, self.choice(self.momentum, count))
        self.momentum -= sent
        return sent.mean(0).sign()


class FrozenSquares(Worker):
    """1-bit Adam: dense Adam at first, then momenta of the workers over a second moment that stays.

    Departs from the paper: a small part of the mean root is added to each, without which an entry
    that nearly never had a gradient is divided by nearly nothing, and training diverges.

    Parameters
    ----------
    until : the last dense step
    """

    def __init__(self, workers: int, numel: int, until: int) -> None:
        super().__init__(workers, numel)
        self.until = until
        self.momentum, self.residual = torch.zeros(self.shape), torch.zeros(self.shape)
        self.mean, self.square = torch.zeros(numel), torch.zeros(numel)

    def send(self, gradients: torch.Tensor, count: int, step: int) -> torch.Tensor:
        if step <= self.until:
            gradient = gradients.mean(0)
            self.mean.lerp_(gradient, 1 - BETA1)
            self.square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            self.momentum[:] = self.mean
            root = (self.square / (1 - BETA2**step)).sqrt()
            return self.mean / (1 - BETA1**step) / (root + EPSILON)
        self.momentum.lerp_(gradients, 1 - BETA1)
        self.residual += self.momentum
        sent = at(self.residual, self.choice(self.residual, count))
        self.residual -= sent
        frozen = (self.square / (1 - BETA2**self.until)).sqrt()
        return sent.mean(0) / (frozen + frozen.mean() / math.sqrt(frozen.numel()) + EPSILON)
