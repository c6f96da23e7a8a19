"""Published methods of others, with which we compare ours, written as in their papers' formulas.

A rule makes a step from the gradients of all workers, which are simulated in one process. Tensors
of one dimension and small tensors are averaged dense by all rules. ``entry_bytes`` counts the bytes
that one worker sends of the other tensors, without headers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.accuracy.tasks import WEIGHT_DECAY

LEAST_NUMEL = 1024
"""Entries of the smallest tensor that is compressed, as in the package."""

Gradients = Callable[[torch.Tensor], tuple[list[torch.Tensor], float]]
"""Returns the gradients and the loss of some examples."""


def is_compressed(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 1 and tensor.numel() >= LEAST_NUMEL


class Dense:
    """Dense averaging of gradients, and the base class of the rules."""

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, workers: int) -> None:
        self.network, self.optimizer = network, optimizer
        self.parameters = list(network.parameters())
        self.workers = workers
        self.entry_bytes = 0.0
        self.steps = 0

    def step(self, examples: torch.Tensor, gradients: Gradients) -> float:
        """Make a step; return the mean loss."""
        self.steps += 1
        each = [gradients(part) for part in examples.chunk(self.workers)]
        for position, parameter in enumerate(self.parameters):
            found = torch.stack([worker[position] for worker, _ in each])
            if is_compressed(parameter):
                parameter.grad = self.reduce(position, found)
            else:
                parameter.grad = found.mean(0)
        self.update()
        return sum(loss for _, loss in each) / self.workers

    def reduce(self, position: int, found: torch.Tensor) -> torch.Tensor | None:
        """Return the gradient for the optimizer from all workers' gradients [workers, *shape], or
        None if the rule updates the parameter itself."""
        self.entry_bytes += 4 * found[0].numel()
        return found.mean(0)

    def update(self) -> None:
        self.optimizer.step()

    def finish(self) -> None:
        """Complete the training, so that the parameters can be tested."""


class Fp16(Dense):
    def reduce(self, position: int, found: torch.Tensor) -> torch.Tensor:
        self.entry_bytes += 2 * found[0].numel()
        total = found[0].half()
        for other in found[1:]:
            total = total + other.half()
        return (total / self.workers).float()


class PowerSGD(Dense):
    """PowerSGD with error feedback (Vogels, Karimireddy, Jaggi, 2019, Algorithms 1 and 2)."""

    def __init__(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, workers: int, rank: int
    ) -> None:
        super().__init__(network, optimizer, workers)
        self.rank = rank
        self._errors: dict[int, torch.Tensor] = {}
        self._factors: dict[int, torch.Tensor] = {}
        self._drawn = torch.Generator().manual_seed(1)

    def reduce(self, position: int, found: torch.Tensor) -> torch.Tensor:
        # M [workers, rows, columns]; P = orthogonal(mean M Q), Q = mean M^T P, sent: P and Q
        matrices = found.flatten(2) + self._errors.get(position, 0.0)
        rows, columns = matrices.shape[1:]
        rank = min(self.rank, rows, columns)
        if position not in self._factors:
            self._factors[position] = torch.randn(columns, rank, generator=self._drawn)
        left = torch.linalg.qr((matrices @ self._factors[position]).mean(0)).Q
        right = self._factors[position] = matrices.mean(0).T @ left
        self._errors[position] = matrices - left @ right.T
        self.entry_bytes += 4 * rank * (rows + columns)
        return (left @ right.T).view_as(found[0])


class OneBitAdam(Dense):
    """1-bit Adam: dense steps of Adam first; then the signs of the momentum are sent, and the
    second moment is constant (Tang et al., 2021)."""

    WARMUP = 0.2

    def __init__(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, workers: int, steps: int
    ) -> None:
        super().__init__(network, optimizer, workers)
        self._warmup = max(1, round(self.WARMUP * steps))
        self._errors: dict[int, torch.Tensor] = {}
        self._servers: dict[int, torch.Tensor] = {}

    def reduce(self, position: int, found: torch.Tensor) -> torch.Tensor | None:
        if self.steps <= self._warmup:
            return super().reduce(position, found)
        parameter, group = self.parameters[position], self.optimizer.param_groups[0]
        state = self.optimizer.state[parameter]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        # every worker: c = sign of (m + error); the server the same of the mean of all c
        own = mean + (1 - group["betas"][0]) * (found - mean) + self._errors.get(position, 0.0)
        sent = signs_of(own, from_dim=1)
        self._errors[position] = own - sent
        total = sent.mean(0) + self._servers.get(position, 0.0)
        mean.copy_(signs_of(total, from_dim=0))
        self._servers[position] = total - mean
        frozen = square / (1 - group["betas"][1] ** self._warmup)
        with torch.no_grad():
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.addcdiv_(mean, frozen.sqrt() + group["eps"], value=-group["lr"])
        self.entry_bytes += found[0].numel() / 8 + 4
        return None


def signs_of(tensor: torch.Tensor, from_dim: int) -> torch.Tensor:
    """Return signs times the mean magnitude over the dimensions from ``from_dim`` on."""
    dims = tuple(range(from_dim, tensor.dim()))
    # a zero is sent as a plus, as one bit says no more
    plus = torch.where(tensor < 0, -1.0, 1.0)
    return plus * tensor.abs().mean(dims, keepdim=True)


class SparseLoCo(Dense):
    """SparseLoCo: local steps of AdamW, then an exchange of the changes of the parameters by top-k
    in chunks with error feedback and values of two bits (Sarfi et al., 2025).

    The two magnitudes of a chunk are the mean of the magnitudes above their mean, and that of the
    others.

    Parameters
    ----------
    interval : local steps between exchanges
    entries : number of sent entries in a chunk of 4,096
    """

    CHUNK, DECAY, OUTER_RATE = 4096, 0.95, 1.0
    INDEX_BITS, VALUE_BITS, MAGNITUDE_BYTES = 12, 2, 4

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        workers: int,
        interval: int,
        entries: int,
    ) -> None:
        super().__init__(network, optimizer, workers)
        self._interval, self._entries = interval, entries
        self._errors: dict[int, torch.Tensor] = {}
        self._agreed = [p.detach().clone() for p in self.parameters]
        self._locals = [[p.detach().clone() for p in self.parameters] for _ in range(workers)]
        group = optimizer.param_groups[0]
        self._optimizers = [
            torch.optim.AdamW(mine, lr=group["lr"], weight_decay=WEIGHT_DECAY)
            for mine in self._locals
        ]

    def step(self, examples: torch.Tensor, gradients: Gradients) -> float:
        self.steps += 1
        losses = []
        for part, mine, local in zip(examples.chunk(self.workers), self._locals, self._optimizers):
            self._show(mine)
            found, loss = gradients(part)
            losses.append(loss)
            for parameter, gradient in zip(mine, found):
                parameter.grad = gradient
            local.param_groups[0]["lr"] = self.optimizer.param_groups[0]["lr"]
            local.step()
        if self.steps % self._interval == 0:
            self._exchange()
        self._show(self._agreed)
        return sum(losses) / self.workers

    def finish(self) -> None:
        if self.steps % self._interval:
            self._exchange()
        self._show(self._agreed)

    @torch.no_grad()
    def _show(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(self.parameters, values):
            parameter.copy_(value)

    def _exchange(self) -> None:
        for position, agreed in enumerate(self._agreed):
            moved = agreed - torch.stack([mine[position] for mine in self._locals])
            if is_compressed(agreed):
                owed = self.DECAY * self._errors.get(position, 0.0) + moved
                sent = self.compressed(owed)
                self._errors[position] = owed - sent
            else:
                sent = moved
            agreed.sub_(self.OUTER_RATE * sent.mean(0))
            for mine in self._locals:
                mine[position].copy_(agreed)

    def compressed(self, owed: torch.Tensor) -> torch.Tensor:
        """Return the sent part of ``owed`` [workers, *shape], and count its bytes."""
        flat = owed.flatten(1)
        parts = []
        for chunk in flat.split(self.CHUNK, dim=1):
            count = max(1, round(self._entries * chunk.shape[1] / self.CHUNK))
            where = chunk.abs().topk(count, dim=1).indices
            parts.append(
                torch.zeros_like(chunk).scatter(1, where, two_bits(chunk.gather(1, where)))
            )
            self.entry_bytes += count * (self.INDEX_BITS + self.VALUE_BITS) / 8
            self.entry_bytes += self.MAGNITUDE_BYTES
        return torch.cat(parts, dim=1).view_as(owed)


def two_bits(values: torch.Tensor) -> torch.Tensor:
    """Return the values rounded to four levels: signs times one of two magnitudes of the row."""
    size = values.abs()
    is_large = size > size.mean(1, keepdim=True)
    means = [
        (size * some).sum(1, keepdim=True) / some.sum(1, keepdim=True).clamp(min=1)
        for some in (~is_large, is_large)
    ]
    return values.sign() * torch.where(is_large, means[1], means[0])


class DeMo(Dense):
    """DeMo (decoupled momentum): send the largest components of the cosine transform of a decaying
    sum of gradients, and apply the signs of their mean (Peng, Quesnelle, Kingma, 2024).

    Parameters
    ----------
    entries : number of sent components of a chunk of 64 x 64; a smaller chunk sends fewer
    """

    SIDE, DECAY = 64, 0.999
    COMPONENT_BYTES = 3.5
    """12 bits for the position and 16 bits for the value."""

    def __init__(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, workers: int, entries: int
    ) -> None:
        super().__init__(network, optimizer, workers)
        self._entries = entries
        self._sums: dict[int, torch.Tensor] = {}

    def reduce(self, position: int, found: torch.Tensor) -> None:
        owed = self.DECAY * self._sums.get(position, 0.0) + found.flatten(2)
        sent = self.components(owed)
        self._sums[position] = owed - sent
        parameter, group = self.parameters[position], self.optimizer.param_groups[0]
        with torch.no_grad():
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(group["lr"] * sent.mean(0).view_as(parameter).sign())

    def components(self, owed: torch.Tensor) -> torch.Tensor:
        """Return the sent part of ``owed`` [workers, rows, columns], and count its bytes."""
        workers, rows, columns = owed.shape
        high, wide = largest_divisor(rows, self.SIDE), largest_divisor(columns, self.SIDE)
        blocks = owed.view(workers, rows // high, high, columns // wide, wide).transpose(2, 3)
        down, across = cosines(high), cosines(wide)
        found = (down @ blocks @ across.T).flatten(3)
        count = max(1, round(self._entries * found.shape[3] / self.SIDE**2))
        where = found.abs().topk(count, dim=3).indices
        kept = torch.zeros_like(found).scatter(3, where, found.gather(3, where))
        self.entry_bytes += count * self.COMPONENT_BYTES * found.shape[1] * found.shape[2]
        back = down.T @ kept.view(blocks.shape) @ across
        return back.transpose(2, 3).reshape(owed.shape)


def largest_divisor(number: int, limit: int) -> int:
    return max(each for each in range(1, min(number, limit) + 1) if number % each == 0)


def cosines(size: int) -> torch.Tensor:
    """Return the orthonormal matrix of the cosine transform, [size, size]."""
    at = torch.arange(size)
    matrix = torch.cos(math.pi / size * (at[None] + 0.5) * at[:, None]) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix
