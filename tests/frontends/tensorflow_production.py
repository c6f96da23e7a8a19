"""Worker: loss scaling, and training that is saved or goes on from what was saved.  Arguments:
what, and a folder."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from _common import Cases, run_cases
from _keras_models import make_built_model
from _tensorflow_cases import Compression, begin, digest_of, end, hvd, meet, residuals_of, summed
from horovod.tensorflow.keras import DistributedOptimizer

from hvd_sparse.tensorflow import CompressorState, SaveCompressor

keras = tf.keras
STEPS, HALF, BAD_STEPS = 12, 5, (4, 5, 9)
SHAPES = {"wide": (12, 16), "tall": (9, 4), "bias": (6,)}

BY_NAME = {"*": 0.1, "tall*": 0.25}
"""Densities of the checkpoints' trainings."""


class Training:
    """Variables, momentum, and gradients that depend on rank and step alone; the loss is scaled if
    wanted."""

    def __init__(
        self, name: str, scaled: bool = False, groups: int | None = None, density: Any = 0.1
    ) -> None:
        self.variables = [tf.Variable(tf.ones(shape), name=key) for key, shape in SHAPES.items()]
        self.optimizer = keras.optimizers.legacy.SGD(0.05, momentum=0.9)
        options: dict[str, Any] = {}
        if scaled:
            self.optimizer = keras.mixed_precision.LossScaleOptimizer(
                self.optimizer, initial_scale=2.0**10, dynamic_growth_steps=3
            )
            options = {"grad_scaler": self.optimizer}
        self.compressor = Compression.ldte_bs(
            self.variables, density=density, name=name, min_numel=1, allow_dense=False, **options
        )
        self.is_scaled, self._groups = scaled, groups
        self.take_step = tf.function(self._take_step)

    def _take_step(self, *gradients: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(v * g) for v, g in zip(self.variables, gradients))
            loss = self.optimizer.get_scaled_loss(loss) if self.is_scaled else loss
        tape = hvd.DistributedGradientTape(tape, compression=self.compressor, groups=self._groups)
        reduced = tape.gradient(loss, self.variables)
        unscaled = self.optimizer.get_unscaled_gradients(reduced) if self.is_scaled else reduced
        self.optimizer.apply_gradients(zip(unscaled, self.variables))
        return reduced

    def run(self, steps: range) -> None:
        for step in steps:
            self.take_step(*gradients_of(step))

    def entries(self) -> dict[str, int]:
        """What this rank sends of every tensor in a step."""
        specs = {spec.key: spec for spec in self.compressor.step.specs}
        densities = {
            key: self.compressor.configuration.density(HALF, spec) for key, spec in specs.items()
        }
        return {key: round(each * specs[key].numel) for key, each in densities.items() if each}

    def digest(self) -> dict[str, str]:
        return {
            "weights": digest_of(self.variables),
            "kept": digest_of(residuals_of(self.compressor).values()),
        }


def gradients_of(step: int) -> list[Any]:
    draw = np.random.default_rng([step, hvd.rank()])
    return [tf.constant(draw.normal(size=shape).astype("f4")) for shape in SHAPES.values()]


def loss_scaling(name: str, *, tensor: int, groups: int | None = None) -> dict[str, Any]:
    training = Training(name, scaled=True, groups=groups)
    seen, scales, kept = [], [], []
    for step in range(STEPS):
        given = gradients_of(step)
        if step in BAD_STEPS and hvd.rank() == hvd.size() - 1:
            given[tensor] = given[tensor] * np.float32(np.inf)
        before = training.digest()
        reduced = training.take_step(*given)
        seen.append(
            [key for key, g in zip(SHAPES, reduced) if not np.isfinite(np.asarray(g)).all()]
        )
        scales.append(float(training.optimizer.loss_scale))
        after = training.digest()
        kept.append([after["kept"] == before["kept"], after["weights"] == before["weights"]])
    result = {"seen": seen, "scales": scales, "kept": kept, "end": training.digest()["weights"]}
    training.compressor.close()
    return result


def pending_mass(name: str) -> dict[str, Any]:
    """Scales that change, from a callable: what was given, unscaled, is what was applied and what
    is kept."""
    variable, scale = tf.Variable(tf.zeros((12, 10))), [1.0]
    compressor = Compression.topk(
        [variable],
        density=0.1,
        name=name,
        min_numel=1,
        allow_dense=False,
        grad_scaler=lambda: scale[0],
    )

    @tf.function
    def reduce(gradient: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * gradient)
        return hvd.DistributedGradientTape(tape, compression=compressor, op=hvd.Sum).gradient(
            loss, [variable]
        )

    given, applied = np.zeros(120), np.zeros(120)
    for step in range(20):
        scale[0] = 2.0 ** (step % 5)
        gradient = np.random.default_rng([step, hvd.rank()]).integers(-3, 4, (12, 10)).astype("f4")
        (reduced,) = reduce(tf.constant(gradient * np.float32(scale[0])))
        given += gradient.reshape(-1)
        applied += np.asarray(reduced, np.float64).reshape(-1) / scale[0]
    (kept,) = residuals_of(compressor).values()
    missing = summed(given - kept, f"{name}.missing") - applied
    compressor.close()
    return {"missing": float(np.abs(missing).max()), "kept": float(np.abs(kept).max())}


def checkpoint_of(training: Training) -> Any:
    state = CompressorState(training.compressor)
    variables = dict(zip(SHAPES, training.variables))
    return tf.train.Checkpoint(optimizer=training.optimizer, compressor=state, **variables)


def save(name: str, folder: Path) -> dict[str, Any]:
    training = Training(name, density=BY_NAME)
    training.run(range(HALF))
    checkpoint_of(training).write(str(folder / f"rank{hvd.rank()}"))
    training.compressor.save(folder / "all")
    training.run(range(HALF, 2 * HALF))
    return {**training.digest(), "entries": training.entries()}


def go_on(name: str, folder: Path) -> list[Any]:
    """In a new process, from each rank's own checkpoint, and from the file of all ranks."""
    ends = []
    for source in ("own", "all"):
        training = Training(f"{name}.{source}", density=BY_NAME)
        training.optimizer._create_all_weights(training.variables)
        checkpoint_of(training).read(str(folder / f"rank{hvd.rank()}")).assert_consumed()
        if source == "all":
            training.compressor.load(folder / "all")
        training.run(range(HALF, 2 * HALF))
        ends.append({**training.digest(), "entries": training.entries()})
        training.compressor.close()
    return ends


def keras_callback(name: str, folder: Path) -> dict[str, Any]:
    """What ``fit`` saves at an epoch's end is what the compressor keeps then."""
    model = make_built_model()
    compressor = Compression.topk(model, density=0.1, name=name, min_numel=1, allow_dense=False)
    model.compile(
        DistributedOptimizer(keras.optimizers.legacy.SGD(0.05), compression=compressor), "mse"
    )
    x, y = np.random.default_rng(hvd.rank()).normal(size=(2, 16, 6)).astype("f4")
    model.fit(
        x,
        y[:, :3],
        epochs=2,
        batch_size=4,
        verbose=0,
        callbacks=[SaveCompressor(compressor, folder / "{epoch}")],
    )
    kept = digest_of(residuals_of(compressor).values())
    model.fit(x, y[:, :3], epochs=1, batch_size=4, verbose=0)
    changed = digest_of(residuals_of(compressor).values())
    compressor.load(folder / "2")
    loaded = digest_of(residuals_of(compressor).values())
    compressor.close()
    return {"kept": kept, "changed": changed, "loaded": loaded}


def main() -> None:
    begin(2)
    work, folder = sys.argv[1], Path(sys.argv[2])
    cases = Cases()
    if work == "save":
        cases["scaling_of_a_sparse_tensor"] = partial(loss_scaling, tensor=1)
        cases["scaling_of_a_dense_tensor"] = partial(loss_scaling, tensor=2)
        cases["scaling_of_a_tensor_in_a_group"] = partial(loss_scaling, tensor=1, groups=1)
        cases["pending_mass"] = pending_mass
        cases["keras_callback"] = partial(keras_callback, folder=folder)
        cases["checkpoint"] = partial(save, folder=folder)
    else:
        cases["checkpoint"] = partial(go_on, folder=folder)
    run_cases(cases, hvd.rank(), meet)
    end()


if __name__ == "__main__":
    main()
