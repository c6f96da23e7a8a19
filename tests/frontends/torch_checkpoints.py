"""Worker: training that is saved, or that goes on from what was saved.  Arguments: what, and a
folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from _common import caught
from _torch_cases import digest_of, run_torch_cases, summed
from torch import nn

from hvd_sparse.torch import Compression

HALF = 5
METHODS = {
    "ldte_bs": {"method": "ldte_bs", "density": 0.05},
    "dgc": {"method": "dgc", "density": 0.05, "weight_decay": 0.01},
    "redsync": {
        "method": "redsync",
        "density": 0.05,
        "search": True,
        "schedule": {"id": "exponential_warmup", "value": 0.05, "stage_steps": 2, "stages": 3},
    },
}


class Training:
    """A model, its optimizer and its compressor, and gradients that depend on rank and step
    alone."""

    def __init__(self, name: str, method: str, **options: Any) -> None:
        torch.manual_seed(4)
        self.model = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 10))
        named = list(self.model.named_parameters())
        self.compressor = getattr(Compression, method)(
            named, name=name, min_numel=1, allow_dense=False, **options
        )
        named = [(f"{name}.{key}", parameter) for key, parameter in named]
        descent = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.0 if method == "dgc" else 0.9
        )
        self.optimizer = hvd.DistributedOptimizer(
            descent, named_parameters=named, compression=self.compressor
        )

    def take_steps(self, steps: range) -> None:
        for step in steps:
            draw = torch.Generator().manual_seed(1000 * step + hvd.rank())
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(
                self.model(torch.randn(8, 24, generator=draw)),
                torch.randint(10, (8,), generator=draw),
            ).backward()
            self.optimizer.step()

    def digest(self) -> dict[str, str]:
        tensors = self.compressor.state_dict()["tensors"].values()
        kept = digest_of([array for tensor in tensors for array in tensor["arrays"].values()])
        return {"weights": digest_of(self.model.parameters()), "kept": kept}

    def owed(self) -> list[float]:
        """What the optimizer is still owed of each tensor, summed over its entries; and how much is
        moved about."""
        tensors = self.compressor.state_dict()["tensors"]
        parts = [tensors[key]["arrays"]["residual"].double() for key in sorted(tensors)]
        signed, moved = (
            torch.stack([p.sum() for p in parts]),
            torch.stack([p.abs().sum() for p in parts]),
        )
        name = self.compressor.name
        return (
            (summed(signed, f"{name}.owed") / hvd.size()).tolist(),
            (summed(moved, f"{name}.moved")).tolist(),
        )


def save(name: str, folder: Path) -> dict[str, Any]:
    training = Training(name, **METHODS[name])
    training.take_steps(range(HALF))
    everything = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
    }
    everything["compressor"] = training.compressor.state_dict()
    torch.save(everything, folder / f"{name}.{hvd.rank()}.pt")
    training.compressor.save(folder / f"{name}.all")
    owed = training.owed()
    training.take_steps(range(HALF, 2 * HALF))
    return {"owed": owed, "end": training.digest()}


def go_on(name: str, folder: Path) -> dict[str, Any]:
    """In a new process, from each rank's own file, and from the file of all ranks."""
    ends = []
    for source in ("own", "all"):
        training = Training(f"{name}.{source}", **METHODS[name])
        saved = torch.load(folder / f"{name}.{hvd.rank()}.pt", weights_only=True)
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
        if source == "own":
            training.compressor.load_state_dict(saved["compressor"])
        else:
            training.compressor.load(folder / f"{name}.all")
        training.take_steps(range(HALF, 2 * HALF))
        ends.append(training.digest())
        training.compressor.close()
    return {"ends": ends}


def redistribute(name: str, folder: Path) -> dict[str, Any]:
    """On another number of ranks."""
    training = Training(name, **METHODS[name])
    training.compressor.load(folder / f"{name}.all")
    owed = training.owed()
    training.take_steps(range(3))
    weights = training.digest()["weights"]
    saved = torch.load(folder / f"{name}.0.pt", weights_only=True)["compressor"]
    refused = caught(training.compressor.load_state_dict, saved)
    return {"owed": owed, "weights": weights, "refused": refused}


def main() -> None:
    hvd.init()
    work, folder = (
        {"save": save, "go_on": go_on, "redistribute": redistribute}[sys.argv[1]],
        Path(sys.argv[2]),
    )
    run_torch_cases({name: lambda name: work(name, folder) for name in METHODS})


if __name__ == "__main__":
    main()
