"""Worker of an elastic run.

Arguments: how many workers to kill, and a folder to note it in; "device" lets the gradients lie on
the pretend device, and Horovod carry them there.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY
from _elastic import (
    DENSITY,
    SHAPES,
    WORKER,
    Killer,
    conclude,
    empty_books,
    flat,
    gradients_of,
    note_reset,
    note_step,
    residual_of,
)
from _torch_cases import digest_of, give_gradients
from devices import carried, pretend
from harness import report

from hvd_sparse.torch import Compression


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for key, shape in SHAPES.items():
            self.register_parameter(key, torch.nn.Parameter(torch.zeros(shape)))


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    killer = Killer(sys.argv[2], int(sys.argv[1]))
    place = torch.device("cpu")
    if "device" in sys.argv[3:]:
        place = pretend.load()
        pretend.late(True)
    model = Model().to(place)
    named = list(model.named_parameters())
    options = {
        **SPARSE_ONLY,
        "timeout_s": 60.0,
        "groups": "planned",
    }  # every world measures anew, and plans if it lasts
    compressor = Compression.topk(named, density=DENSITY, name="elastic", **options)
    descent = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(descent, named_parameters=named, compression=compressor)

    def residuals() -> list[Any]:
        tensors = compressor.state_dict()["tensors"]
        kept = residual_of({key: tensor["arrays"]["residual"] for key, tensor in tensors.items()})
        return hvd.allgather_object((WORKER, kept), name="residuals")

    def weights() -> list[torch.Tensor]:
        return [parameter.cpu() for parameter in model.parameters()]

    def ways() -> dict[str, Any]:
        stats = compressor.stats()
        return {"ways": sorted(set(stats["ways"].values())), "wire": stats["wire"]}

    @hvd.elastic.run
    def train(state: Any) -> None:
        state.books = note_reset(state.books, residuals())
        state.save()  # a worker may die before the first commit, with what it was just given
        while not killer.is_over(
            done := int(hvd.broadcast(torch.tensor(killer.done), 0, name="done")), hvd.size()
        ):
            gradients = gradients_of(hvd.rank(), state.step)
            optimizer.zero_grad()
            give_gradients(
                {getattr(model, key): torch.from_numpy(g).to(place) for key, g in gradients.items()}
            )
            killer.visit(done, hvd.rank(), hvd.size(), state.step)
            optimizer.step()
            given = hvd.allreduce(torch.from_numpy(flat(gradients.values())), name="given").numpy()
            applied = flat(getattr(model, key).grad.cpu() for key in SHAPES)
            state.books = note_step(state.books, given, applied, residuals())
            digests = hvd.allgather_object(digest_of(weights()), name="digests")
            assert len(set(digests)) == 1, f"replicas differ at step {state.step}"
            state.step += 1
            time.sleep(0.05)
            state.commit()

    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, compressor=compressor, books=empty_books(), step=0
    )
    train(state)
    report(
        hvd.rank(),
        {**conclude(state.books), "steps": state.step, "weights": digest_of(weights()), **ways()},
    )


if __name__ == "__main__":
    with carried.carrying() if "device" in sys.argv[3:] else nullcontext():
        main()
