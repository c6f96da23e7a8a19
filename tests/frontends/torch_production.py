"""Worker, for PyTorch: loss scaling and checkpoints. Arguments: the kind of cases, and a folder."""

import itertools
import sys
from functools import partial
from pathlib import Path

import _torch_cases as fw
import horovod.torch as hvd
import numpy as np
import torch
from _common import Cases

STEPS, HALF, BAD_STEPS = 12, 5, (4, 5, 9)
SHAPES = {"wide": (12, 16), "tall": (9, 4), "bias": (6,)}


class Training:
    def __init__(self, name, scaled=False, groups=None, hands_over=False):
        self.variables = fw.make_variables(SHAPES)
        descent = torch.optim.SGD(self.variables.values(), lr=0.05, momentum=0.9)
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=2.0**10, growth_interval=3, enabled=scaled
        )
        chosen = {"density": 0.1, "name": name, "min_numel": 1, "allow_dense": False}
        if scaled:
            chosen["grad_scaler"] = self.scaler
        if hands_over:
            chosen["optimizer"] = descent
        self.compressor = fw.Compression.ldte_bs(self.variables.items(), **chosen)
        self.optimizer = fw.distributed(
            name, self.variables, descent, self.compressor, groups=groups
        )

    def take_step(self, *gradients, between=lambda: None):
        self.optimizer.zero_grad()
        variables = list(self.variables.values())
        loss = sum((v * torch.as_tensor(g)).sum() for v, g in zip(variables, gradients))
        self.scaler.scale(loss).backward()
        self.optimizer.synchronize()
        self.scaler.unscale_(self.optimizer)
        reduced = [v.grad.clone() for v in variables]
        torch.nn.utils.clip_grad_norm_(variables, 1e3)  # spreads NaN over all gradients
        between()
        with self.optimizer.skip_synchronize():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        return reduced

    def run(self, steps):
        for step in steps:
            self.take_step(*gradients_of(step))

    def digest(self):
        tensors = self.compressor.state_dict()["tensors"]
        arrays = [array for key in sorted(tensors) for array in tensors[key]["arrays"].values()]
        return {"weights": fw.digest_of(self.variables.values()), "kept": fw.digest_of(arrays)}

    def save(self, path):
        parts = [dict(self.variables), self.optimizer.state_dict(), self.compressor.state_dict()]
        torch.save(parts, path)

    def load(self, path):
        variables, optimizer, compressor = torch.load(path, weights_only=True)
        for key, value in variables.items():
            self.variables[key].data.copy_(value)
        self.optimizer.load_state_dict(optimizer)
        self.compressor.load_state_dict(compressor)


def gradients_of(step):
    draw = np.random.default_rng([step, hvd.rank()])
    return [draw.normal(size=shape).astype("f4") for shape in SHAPES.values()]


def loss_scaling(name, **options):
    training = Training(name, scaled=True, **options)
    seen, scales, kept = [], [], []
    for step in range(STEPS):
        given = dict(zip(SHAPES, gradients_of(step)))
        if step in BAD_STEPS and fw.last_rank():
            given["tall"] = given["tall"] * np.float32(np.inf)
        before = training.digest()
        reduced = training.take_step(*given.values())
        seen.append([key for key, g in zip(SHAPES, reduced) if not g.isfinite().all()])
        scales.append(training.scaler.get_scale())
        after = training.digest()
        kept.append([after[what] == before[what] for what in ("kept", "weights")])
    training.compressor.close()
    bad = [step in BAD_STEPS for step in range(STEPS)]
    assert seen == [["tall"] if is_bad else [] for is_bad in bad], seen
    assert kept == [[is_bad] * 2 for is_bad in bad], kept
    exponents = (10, 10, 11, 11, 10, 9, 9, 9, 10, 9, 9, 9)
    assert scales == [2.0**exponent for exponent in exponents], scales
    assert len(set(hvd.allgather_object(after["weights"], name=f"{name}.alike"))) == 1


def save(name, folder):
    training = Training(name)
    training.run(range(HALF))
    training.save(folder / str(hvd.rank()))
    training.compressor.save(folder / "all")

    def save_between():
        training.save(folder / f"{hvd.rank()}_between")
        training.compressor.save(folder / "all_between")

    training.take_step(*gradients_of(HALF), between=save_between)
    training.run(range(HALF + 1, 2 * HALF))
    return training.digest()


def resume(name, folder):
    """Resume from the states after a step, and from those between the next step's exchange and the
    optimizer's step, which are the same."""
    ends = []
    for source, when in itertools.product(("own", "all"), ("", "_between")):
        training = Training(f"{name}.{source}{when}")
        training.load(folder / f"{hvd.rank()}{when}")
        if source == "all":
            training.compressor.load(folder / f"all{when}")
        training.run(range(HALF, 2 * HALF))
        ends.append(training.digest())
        training.compressor.close()
    return ends


if __name__ == "__main__":
    fw.begin()
    of_work = {"save": save, "resume": resume}[sys.argv[1]]
    cases = Cases(halves=partial(of_work, folder=Path(sys.argv[2])))
    if of_work is save:
        cases["scaling_of_a_tensor"] = loss_scaling
        cases["scaling_of_a_tensor_in_a_group"] = partial(loss_scaling, groups=1)
        cases["scaling_handed_over"] = partial(loss_scaling, hands_over=True)
    fw.run(cases)
