"""Law 3 for programs that are built differently: embeddings, several optimizers, several
compressors, groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases
from _torch_cases import digest_of, flat_parameters
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from hvd_sparse.torch import Compression

STEPS = 5
Compress = Callable[..., Any]
Program = Callable[[Compress], list[nn.Module]]

cases = Cases()


def compare_with_dense(program: Program, name: str, **options: Any) -> dict[str, Any]:
    """Run a training program with stock Horovod and compressed; how far apart the models end."""
    compressors = []

    def compress(named_parameters: Any, label: str | None = "") -> Any:
        called = None if label is None else f"{name}.{label}"
        chosen = {"density": 1.0, "name": called, **SPARSE_ONLY, **options}
        compressors.append(Compression.ldte_bs(named_parameters, **chosen))
        return compressors[-1]

    torch.manual_seed(7)
    dense = torch.cat(
        [flat_parameters(model) for model in program(lambda *_: hvd.Compression.none)]
    )
    torch.manual_seed(7)
    models = program(compress)
    stats = [compressor.stats() for compressor in compressors]
    for compressor in compressors:
        compressor.close()
    return {
        "difference": float(
            (torch.cat([flat_parameters(model) for model in models]) - dense).abs().max()
        ),
        "digest": digest_of(parameter for model in models for parameter in model.parameters()),
        "dense_steps": [each["dense_steps"] for each in stats],
        "dense_bytes": [each["dense_bytes"] for each in stats],
        "tensors": [
            {key: each["tensors"][key]["sparse_steps"] for key in each["tensors"]} for each in stats
        ],
    }


def beside_dense(program: Program) -> Program:
    cases[program.__name__] = partial(compare_with_dense, program)
    return program


def tower(*widths: int) -> nn.Sequential:
    """Linear layers with tangents between."""
    layers: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.Tanh()]
    return nn.Sequential(*layers)


def wrap(named: list[tuple[str, nn.Parameter]], compression: Any, **options: Any) -> Any:
    descent = torch.optim.SGD([parameter for _, parameter in named], lr=0.3)
    return hvd.DistributedOptimizer(
        descent, named_parameters=named, compression=compression, **options
    )


class Words(nn.Module):
    """Two tables of one shape with sparse gradients, of which ranks look at one in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(12, 4, sparse=True)
        self.second = nn.Embedding(12, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, words: torch.Tensor, looks_twice: bool) -> torch.Tensor:
        hidden = self.first(words) + (self.second(words) if looks_twice else 0)
        return self.head(torch.tanh(hidden.mean(1)))


def train_words(
    compress: Compress, *, looks_twice: Callable[[int], bool], keeps: bool, **options: Any
) -> Any:
    model = Words()
    named = list(model.named_parameters())
    optimizer = wrap(named, compress(named), **options)
    for step in range(STEPS):
        model.zero_grad(set_to_none=not keeps)
        draw = torch.Generator().manual_seed(100 * hvd.rank() + step)
        words = torch.randint(0, 12, (6, 3), generator=draw)
        model(words, looks_twice(step)).pow(2).mean().backward()
        optimizer.step()
    return [model]


@beside_dense
def embeddings_as_dense(compress: Compress) -> list[nn.Module]:
    return train_words(compress, looks_twice=lambda step: True, keeps=False, sparse_as_dense=True)


@beside_dense
def embeddings_as_dense_of_which_one_waits(compress: Compress) -> list[nn.Module]:
    """Horovod submits the second table's old gradient, kept as zeros, without a hook."""
    return train_words(
        compress, looks_twice=lambda step: step % 2 == 0, keeps=True, sparse_as_dense=True
    )


@beside_dense
def embeddings_as_dense_submitted_late(compress: Compress) -> list[nn.Module]:
    """One backward pass where two were announced: Horovod submits in ``step``."""
    options = {"sparse_as_dense": True, "backward_passes_per_step": 2}
    return train_words(compress, looks_twice=lambda step: True, keeps=False, **options)


@beside_dense
def sparse_embeddings_untouched(compress: Compress) -> list[nn.Module]:
    return train_words(compress, looks_twice=lambda step: True, keeps=False)


@beside_dense
def two_optimizers_with_one_compressor(compress: Compress) -> list[nn.Module]:
    """They step together at even steps, and only the first at odd ones."""
    model = tower(6, 8, 8, 3)
    named = list(model.named_parameters())
    compression = compress(named)
    first, second = wrap(named[:3], compression), wrap(named[3:], compression)
    for step in range(STEPS):
        model.zero_grad()
        for _, parameter in named[3:]:
            parameter.requires_grad_(step % 2 == 0)
        model(data(step)).pow(2).mean().backward()
        first.step()
        if step % 2 == 0:
            second.step()
    return [model]


@beside_dense
def two_compressors_of_a_gan(compress: Compress) -> list[nn.Module]:
    """Generator and critic have parameters of the same names and shapes."""
    models = [tower(6, 6, 6), tower(6, 6, 6)]
    named = [list(model.named_parameters()) for model in models]
    optimizers = [wrap(n, compress(n, label)) for n, label in zip(named, ("maker", "critic"))]
    for step in range(STEPS):
        for turn in (1, 0):
            learner, other = models[turn], models[1 - turn]
            other.requires_grad_(False)
            learner.zero_grad()
            (models[1](models[0](data(step))).mean() * (1 if turn else -1)).backward()
            optimizers[turn].step()
            other.requires_grad_(True)
    return models


class Tied(nn.Module):
    """A weight that is used twice, and one that is frozen at first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x).tanh()).tanh())


def train_steps(
    compress: Compress,
    model: nn.Module,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    **options: Any,
) -> list[nn.Module]:
    named = list(model.named_parameters())
    trained = [(key, parameter) for key, parameter in named if not key.startswith("base")]
    optimizer = wrap(trained, compress(named), **options)
    for step in range(STEPS):
        model.zero_grad()
        (forward or model)(data(step)).pow(2).mean().backward()
        optimizer.step()
    return [model]


def train_tower(compress: Compress, **options: Any) -> list[nn.Module]:
    return train_steps(compress, tower(6, 8, 8, 3), **options)


@beside_dense
def shared_and_frozen_parameters(compress: Compress) -> list[nn.Module]:
    model = Tied()
    model.head.weight.requires_grad_(False)
    return train_steps(compress, model)


@beside_dense
def a_compiled_model(compress: Compress) -> list[nn.Module]:
    model = tower(6, 8, 8, 3)
    return train_steps(compress, model, torch.compile(model, backend="aot_eager"))


@beside_dense
def gradient_checkpointing(compress: Compress) -> list[nn.Module]:
    model = tower(6, 8, 8, 3)
    return train_steps(
        compress, model, lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False)
    )


class Concatenated(nn.Module):
    """Two parameters whose gradients autograd cuts out of one tensor, with one version."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.randn(4, 6)) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((x @ torch.cat([self.left, self.right]).T).tanh())


@beside_dense
def parts_of_one_gradient_zeroed_in_place_and_clipped(compress: Compress) -> list[nn.Module]:
    """Clipped as Horovod asks for it; gradients are kept, so that versions grow."""
    model = Concatenated()
    named = list(model.named_parameters())
    optimizer = wrap(named, compress(named))
    for step in range(STEPS):
        model.zero_grad(set_to_none=False)
        model(data(step)).pow(2).mean().backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
    return [model]


@beside_dense
def gradients_that_are_parts_of_one_buffer(compress: Compress) -> list[nn.Module]:
    model = tower(6, 8, 8, 3)
    named = list(model.named_parameters())
    buffer = torch.zeros(sum(parameter.numel() for _, parameter in named))
    for (_, parameter), memory in zip(
        named, buffer.split([parameter.numel() for _, parameter in named])
    ):
        parameter.grad = memory.view_as(parameter)
    optimizer = wrap(named, compress(named))
    for step in range(STEPS):
        buffer.zero_()
        model(data(step)).pow(2).mean().backward()
        optimizer.step()
    return [model]


@beside_dense
def equal_models_with_names_by_default(compress: Compress) -> list[nn.Module]:
    """As in a search over settings; none is closed."""
    models = [tower(6, 8, 3) for _ in range(3)]
    named = [list(model.named_parameters()) for model in models]
    optimizers = [wrap(each, compress(each, None)) for each in named]
    for step in range(STEPS):
        for model, optimizer in zip(models, optimizers):
            model.zero_grad()
            model(data(step)).pow(2).mean().backward()
            optimizer.step()
    return models


class LowRank(nn.Module):
    """A weight of 8 bits that is not trained, and a correction of low rank that is."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(
            torch.randint(-100, 100, (3, 6), dtype=torch.int8), requires_grad=False
        )
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.base.float() / 100 + self.up @ self.down).T


@beside_dense
def integers_below_a_correction_of_low_rank(compress: Compress) -> list[nn.Module]:
    return train_steps(compress, LowRank())


# Biases go dense by default, beside carriers of another dtype in Horovod's groups.
cases["groups_of_compressed_and_dense_tensors"] = partial(
    compare_with_dense, partial(train_tower, groups=2), compress_1d=False, min_numel=30
)
# From two ranks on, dense moves no more bytes than half of the entries with their indices.
cases["half_density"] = partial(compare_with_dense, train_tower, density=0.5, allow_dense=True)


def data(step: int) -> torch.Tensor:
    """This rank's own."""
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * hvd.rank() + step))
