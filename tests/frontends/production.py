"""Loss scaling. Worker, for PyTorch: also checkpoints. Arguments: the framework, the kind of cases,
and a folder."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
from _common import Cases
from _framework import NAME, fw

if NAME == "torch":
    import torch
else:
    import tensorflow as tf

hvd = fw.hvd
STEPS, HALF, BAD_STEPS = 12, 5, (4, 5, 9)
SHAPES = {"wide": (12, 16), "tall": (9, 4), "bias": (6,)}
DENSITIES = {"*": 0.1, "tall*": 0.25}


class Training:
    def __init__(self, name, density=0.1, scaled=False, groups=None, hands_over=False):
        self.variables = fw.make_variables(SHAPES)
        self.groups = groups
        chosen = {"density": density, "name": name, "min_numel": 1, "allow_dense": False}
        if NAME == "torch":
            self.optimizer = torch.optim.SGD(self.variables.values(), lr=0.05, momentum=0.9)
            self.scaler = torch.amp.GradScaler(
                "cpu", init_scale=2.0**10, growth_interval=3, enabled=scaled
            )
        else:
            descent = tf.keras.optimizers.legacy.SGD(0.05, momentum=0.9)
            self.scaler = self.optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
                descent, initial_scale=2.0**10, dynamic_growth_steps=3
            )
        if scaled:
            chosen["grad_scaler"] = self.scaler
        if hands_over:
            chosen["optimizer"] = self.optimizer
        params = fw.params_of(self.variables)
        self.compressor = fw.Compression.ldte_bs(params, **chosen)
        if NAME == "torch":
            self.optimizer = fw.distributed(
                name, self.variables, self.optimizer, self.compressor, groups=groups
            )
            self.take_step = self.step_in_torch
        else:
            self.take_step = tf.function(self.step_in_tensorflow)

    def step_in_torch(self, *gradients):
        self.optimizer.zero_grad()
        variables = list(self.variables.values())
        loss = sum((v * torch.as_tensor(g)).sum() for v, g in zip(variables, gradients))
        self.scaler.scale(loss).backward()
        self.optimizer.synchronize()
        self.scaler.unscale_(self.optimizer)
        reduced = [v.grad.clone() for v in variables]
        torch.nn.utils.clip_grad_norm_(variables, 1e3)  # spreads NaN over all gradients
        with self.optimizer.skip_synchronize():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        return reduced

    def step_in_tensorflow(self, *gradients):
        variables = list(self.variables.values())

        def loss():
            plain = sum(tf.reduce_sum(v * g) for v, g in zip(variables, gradients))
            return self.optimizer.get_scaled_loss(plain)

        reduced = fw.tape_gradients(loss, variables, self.compressor, groups=self.groups)
        self.optimizer.apply_gradients(
            zip(self.optimizer.get_unscaled_gradients(reduced), variables)
        )
        return reduced

    def run(self, steps):
        for step in steps:
            self.take_step(*gradients_of(step))

    def scale(self):
        return float(self.scaler.get_scale() if NAME == "torch" else self.scaler.loss_scale)

    def entries(self):
        specs = {spec.key: spec for spec in self.compressor.step.specs}
        densities = {
            key: self.compressor.configuration.density(HALF, spec) for key, spec in specs.items()
        }
        return {key: round(each * specs[key].numel) for key, each in densities.items() if each}

    def digest(self):
        tensors = self.compressor.state_dict()["tensors"]
        arrays = [array for key in sorted(tensors) for array in tensors[key]["arrays"].values()]
        weights = fw.digest_of(self.variables.values())
        return {"weights": weights, "kept": fw.digest_of(arrays)}

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


def loss_scaling(name, *, tensor, **options):
    training = Training(name, scaled=True, **options)
    seen, scales, kept = [], [], []
    for step in range(STEPS):
        given = dict(zip(SHAPES, gradients_of(step)))
        if step in BAD_STEPS and fw.last_rank():
            given[tensor] = given[tensor] * np.float32(np.inf)
        before = training.digest()
        reduced = training.take_step(*given.values())
        seen.append(
            [key for key, g in zip(SHAPES, reduced) if not np.isfinite(np.asarray(g)).all()]
        )
        scales.append(training.scale())
        after = training.digest()
        kept.append([after[what] == before[what] for what in ("kept", "weights")])
    end = training.digest()["weights"]
    training.compressor.close()
    bad = [step in BAD_STEPS for step in range(STEPS)]
    assert seen == [[tensor] if is_bad else [] for is_bad in bad], seen
    assert kept == [[is_bad] * 2 for is_bad in bad], kept
    exponents = (10, 10, 11, 11, 10, 9, 9, 9, 10, 9, 9, 9)
    assert scales == [2.0**exponent for exponent in exponents], scales
    assert len(set(hvd.allgather_object(end, name=f"{name}.alike"))) == 1


scaling = Cases(
    scaling_of_a_sparse_tensor=partial(loss_scaling, tensor="tall"),
    scaling_of_a_tensor_in_a_group=partial(loss_scaling, tensor="tall", groups=1),
)
if NAME == "torch":
    scaling["scaling_handed_over"] = partial(loss_scaling, tensor="tall", hands_over=True)
else:
    scaling["scaling_of_a_dense_tensor"] = partial(loss_scaling, tensor="bias")


def save(name, folder):
    training = Training(name, DENSITIES)
    training.run(range(HALF))
    training.save(folder / str(hvd.rank()))
    training.compressor.save(folder / "all")
    training.run(range(HALF, 2 * HALF))
    return {"end": training.digest(), "entries": training.entries()}


def resume(name, folder):
    ends = []
    for source in ("own", "all"):
        training = Training(f"{name}.{source}", DENSITIES)
        training.load(folder / str(hvd.rank()))
        if source == "all":
            training.compressor.load(folder / "all")
        training.run(range(HALF, 2 * HALF))
        ends.append(training.digest())
        training.compressor.close()
    return ends


if __name__ == "__main__":
    fw.begin(0)
    of_work = {"save": save, "resume": resume}[sys.argv[2]]
    cases = {"halves": partial(of_work, folder=Path(sys.argv[3]))}
    fw.run({**scaling, **cases} if of_work is save else cases)
