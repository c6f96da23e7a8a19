"""Run on every host of a cluster under horovodrun's elastic mode: train until a file appears, and
keep books of every entry.

    horovodrun --gloo --min-np 2 --host-discovery-script ... python elastic.py --until FILE

What all ranks gave must be what was applied, plus what the residuals still owe, plus the residual
of a host that died.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from _elastic import (
    DENSITY,
    SHAPES,
    WORKER,
    conclude,
    empty_books,
    flat,
    gradients_of,
    note_reset,
    note_step,
    residual_of,
)

from hvd_sparse.torch import Compression

STEPS_A_COMMIT = 3
LIMIT_S = 240
SPARSE_ONLY: dict[str, Any] = {"allow_dense": False, "min_numel": 1, "compress_1d": True}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for key, shape in SHAPES.items():
            self.register_parameter(key, torch.nn.Parameter(torch.zeros(shape)))


def say(words: str) -> None:
    if hvd.rank() == 0:
        print(words, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until", type=Path, required=True)
    until = parser.parse_args().until
    hvd.init()
    torch.set_num_threads(1)
    model = Model()
    named = list(model.named_parameters())
    compressor = Compression.topk(
        named, density=DENSITY, name="elastic", timeout_s=60.0, **SPARSE_ONLY
    )
    descent = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(descent, named_parameters=named, compression=compressor)
    ends = time.monotonic() + LIMIT_S
    seen = 0  # outside the state: what a fault takes back shows as the difference

    def residuals() -> list[Any]:
        tensors = compressor.state_dict()["tensors"]
        kept = residual_of({key: tensor["arrays"]["residual"] for key, tensor in tensors.items()})
        return hvd.allgather_object((WORKER, kept), name="residuals")

    def digest() -> str:
        return hashlib.sha256(
            b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        ).hexdigest()[:16]

    @hvd.elastic.run
    def train(state: Any) -> None:
        nonlocal seen
        state.books = note_reset(state.books, residuals())
        state.save()  # a worker may die before the first commit, with what it was just given
        say(
            f"begins on {hvd.size()} ranks: step {state.step}, {max(0, seen - state.step)} steps "
            "taken back"
        )
        while not bool(hvd.broadcast(torch.tensor(int(until.exists())), 0, name="over")):
            assert time.monotonic() < ends, f"{until} did not appear within {LIMIT_S} s"
            gradients = gradients_of(hvd.rank(), state.step)
            optimizer.zero_grad()
            sum(
                (getattr(model, key) * torch.from_numpy(array)).sum()
                for key, array in gradients.items()
            ).backward()
            optimizer.step()
            given = hvd.allreduce(torch.from_numpy(flat(gradients.values())), name="given").numpy()
            applied = flat(getattr(model, key).grad for key in SHAPES)
            state.books = note_step(state.books, given, applied, residuals())
            state.step += 1
            seen = max(seen, state.step)
            say(f"step {state.step} on {hvd.size()} ranks")
            time.sleep(0.05)
            if state.step % STEPS_A_COMMIT == 0:
                state.commit()

    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, compressor=compressor, books=empty_books(), step=0
    )
    train(state)
    check(conclude(state.books), hvd.allgather_object(digest(), name="digests"), state.step)
    hvd.allgather_object(0, name="end")


def check(books: dict[str, Any], digests: list[str], steps: int) -> None:
    assert len(set(digests)) == 1, f"the ranks' weights differ: {digests}"
    assert max(books["off"]) < 1e-6 * books["given"], f"a reset lost what the ranks owed: {books}"
    assert books["missing"] < 1e-5 * books["given"], f"entries are missing: {books}"
    print(
        f"rank {hvd.rank()}: {steps} steps on {books['sizes']} ranks, all alike; given "
        f"{books['given']:.3g}, "
        f"died with hosts {books['lost']:.3g}, missing {books['missing']:.1g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
