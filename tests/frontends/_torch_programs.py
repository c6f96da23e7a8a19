"""Law 3 for different training programs: with all entries sent, they train as with dense."""

import itertools
import math
from functools import partial
from types import SimpleNamespace

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, ULP, Cases, Heard
from _torch_cases import digest_of, distributed, flat_parameters
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from hvd_sparse.torch import Compression

STEPS = 5
TOLERANCE_ULPS = 4

cases = Cases()


def descent(model):
    return torch.optim.SGD(model.parameters(), lr=0.3)


def compare(
    name, program, *, make=descent, method="ldte_bs", hands_over=False, how=None, **options
):
    """Compare a program with the compressor and with dense gradients. Return how far the results
    differ, also relative to how far training moves the weights, whether the ranks have the same,
    the stats, and the warnings.

    program : function that gets a wrapper for a model's optimizer, and returns the model
    how : options of Horovod's optimizer
    """
    ends, starts, compressors = [], [], []

    def wrap(is_ours, model, label="model", compression=None, of=None, **more):
        """Return Horovod's optimizer for a model. With ``compression``, it shares the compressor of
        another optimizer; ``of`` contains all parameters that a new compressor gets."""
        optimizer, called = make(model), f"{name}.{label}"
        if compression is None and is_ours:
            chosen = {"density": 1.0, "name": called, **SPARSE_ONLY, **options}
            chosen |= {"optimizer": optimizer} if hands_over else {}
            compression = getattr(Compression, method)((of or model).named_parameters(), **chosen)
            compressors.append(compression)
        if not is_ours:
            starts.append((model, flat_parameters(model)))
        how_wrapped = {"compression": compression or hvd.Compression.none, **(how or {}), **more}
        return distributed(f"{called}.{is_ours}", model, optimizer, **how_wrapped)

    for is_ours in (False, True):
        torch.manual_seed(11)
        with Heard() as said:
            ours = program(partial(wrap, is_ours))
        ends.append(flat_parameters(ours))
    stats = [compressor.stats() for compressor in compressors]
    for compressor in compressors:
        compressor.close()
    moved = max(float((flat_parameters(model) - start).abs().max()) for model, start in starts)
    difference = float((ends[0] - ends[1]).abs().max())
    digests = hvd.allgather_object(digest_of(ours.parameters()), name=f"{name}.alike")
    told = {"is_alike": len(set(digests)) == 1, "stats": stats, "said": said}
    return SimpleNamespace(apart=difference, of_the_way=difference / moved, **told)


def check_like_dense(name, *, steps=None, dense_bytes=False, **options):
    """Check that a program trains as with dense gradients. ``steps`` has those of the compressed
    tensors by name, and ``dense_bytes`` tells whether others were sent dense."""
    found = compare(name, **options)
    assert found.is_alike and found.apart <= TOLERANCE_ULPS * ULP["float32"], found.apart
    assert not any(each["dense_steps"] for each in found.stats)
    if steps is not None:
        (stats,) = found.stats
        sparse = {key: each["sparse_steps"] for key, each in stats["tensors"].items()}
        assert (sparse, stats["dense_bytes"] > 0) == (steps, dense_bytes), stats


def steps_of(*names):
    return dict.fromkeys(names, STEPS)


def beside_dense(program):
    cases[program.__name__] = partial(check_like_dense, program=program)
    return program


def tower(*widths):
    layers = []
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.Tanh()]
    return nn.Sequential(*layers)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(12, 4, sparse=True)
        self.second = nn.Embedding(12, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, words, looks_twice):
        hidden = self.first(words) + (self.second(words) if looks_twice else 0)
        return self.head(torch.tanh(hidden.mean(1)))


def train_words(wrap, *, every=1, **options):
    model = Words()
    optimizer = wrap(model, **options)
    for step in range(STEPS):
        model.zero_grad(set_to_none=every == 1)
        draw = torch.Generator().manual_seed(100 * hvd.rank() + step)
        words = torch.randint(0, 12, (6, 3), generator=draw)
        model(words, step % every == 0).pow(2).mean().backward()
        optimizer.step()
    return model


HEAD = ("head.weight", "head.bias")
words = {
    "embeddings_as_dense": {"sparse_as_dense": True},
    # Horovod submits the second table's old gradient, kept as zeros, without a hook.
    "embeddings_as_dense_of_which_one_waits": {"sparse_as_dense": True, "every": 2},
    # One backward pass where two were announced: Horovod submits in ``step``.
    "embeddings_as_dense_submitted_late": {"sparse_as_dense": True, "backward_passes_per_step": 2},
    "sparse_embeddings_untouched": {},
}
expected = {
    "embeddings_as_dense": steps_of("first.weight", "second.weight", *HEAD),
    "sparse_embeddings_untouched": steps_of(*HEAD),
}
for label, options in words.items():
    chosen = {"program": partial(train_words, **options), "steps": expected.get(label)}
    cases[label] = partial(check_like_dense, **chosen)


def train_steps(wrap, model, forward=None, **how):
    optimizer = wrap(model, **how)
    for step in range(STEPS):
        model.zero_grad()
        (forward or model)(data(step)).pow(2).mean().backward()
        optimizer.step()
    return model


def train_tower(wrap):
    return train_steps(wrap, tower(6, 8, 8, 3))


@beside_dense
def two_optimizers_with_one_compressor(wrap):
    model = tower(6, 8, 8, 3)
    first = wrap(model[:2], of=model)
    second = wrap(model[2:], "rest", first._compression)
    for step in range(STEPS):
        model.zero_grad()
        model[2:].requires_grad_(step % 2 == 0)
        model(data(step)).pow(2).mean().backward()
        first.step()
        if step % 2 == 0:
            second.step()
    return model


def one_loss_overflows(wrap):
    """Of two optimizers with one compressor, the scaler skips a step of the second."""
    model = tower(6, 8, 8, 3)
    first = wrap(model[:2], of=model)
    second = wrap(model[2:], "rest", first._compression)
    for step in range(STEPS):
        model.zero_grad()
        hidden = model[:2](data(step))
        scaler.scale(hidden.pow(2).mean()).backward()
        loss = model[2:](hidden.detach()).pow(2).mean()
        scaler.scale(loss * (math.inf if step == 2 else 1)).backward()
        for optimizer in (first, second):
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        scaler.update()
    return model


scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
undone = dict.fromkeys(("2.weight", "2.bias", "4.weight", "4.bias"), STEPS - 1)
cases["one_loss_overflows"] = partial(
    check_like_dense,
    program=one_loss_overflows,
    grad_scaler=scaler,
    steps={**steps_of("0.weight", "0.bias"), **undone},
)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.head.weight.requires_grad_(False)

    def forward(self, x):
        return self.head(self.second(self.first(x).tanh()).tanh())


@beside_dense
def shared_and_frozen_parameters(wrap):
    return train_steps(wrap, Tied())


@beside_dense
def a_compiled_model(wrap):
    model = tower(6, 8, 8, 3)
    return train_steps(wrap, model, torch.compile(model, backend="aot_eager"))


@beside_dense
def gradient_checkpointing(wrap):
    model = tower(6, 8, 8, 3)
    return train_steps(
        wrap, model, lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False)
    )


# Biases go dense by default, beside carriers of another dtype in Horovod's groups.
cases["groups_of_compressed_and_dense_tensors"] = partial(
    check_like_dense,
    program=train_tower,
    how={"groups": 2},
    compress_1d=False,
    min_numel=30,
    steps=steps_of("0.weight", "2.weight"),
    dense_bytes=True,
)


def data(step):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * hvd.rank() + step))
