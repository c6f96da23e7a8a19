"""Worker: local steps, programs like those of Horovod's examples, and the documentation's blocks
with two steps each. Argument: the framework."""

import tempfile
import warnings
from functools import partial

import _local_steps
from _common import caught
from _framework import NAME, fw
from blocks import blocks_for

if NAME == "torch":
    import torch
    from torch import nn
else:
    import _tensorflow_programs
    import numpy as np
    import tensorflow as tf
    from horovod.tensorflow.keras import DistributedOptimizer

hvd = fw.hvd
COMMON = {"Compression": fw.Compression, "epochs": 1, "steps_per_epoch": 4, "total_steps": 4}


def prelude_of_torch():
    warnings.filterwarnings("error", "Detected call of `lr_scheduler")  # a false alarm
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 32))
    data = torch.randn(8, 32, generator=torch.Generator().manual_seed(hvd.rank()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return {
        "torch": torch,
        "nn": nn,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4),
        "loss_function": nn.functional.mse_loss,
        "loader": [(data, data)] * 3,
        "folder": hvd.broadcast_object(tempfile.mkdtemp(), name="folder"),
        "inputs": data,
        "targets": data,
    }


def train_torch(names, own):
    optimizer, model = names["optimizer"], names["model"]
    if "hvd" not in names and "compression" in names:
        named, compression = model.named_parameters(), names["compression"]
        optimizer = names["optimizer"] = hvd.DistributedOptimizer(
            optimizer, named_parameters=named, compression=compression
        )
    if not hasattr(optimizer, "synchronize"):
        return None
    for _ in range(2):
        optimizer.zero_grad()
        names["loss_function"](model(names["inputs"]), names["targets"]).backward()
        optimizer.step()
    return model.parameters()


class Stops(list):
    """Batches that end the program, after some of them, in the epoch number ``self.left``."""

    left = 2

    def __iter__(self):
        self.left -= 1
        yield self[0]
        if not self.left:
            raise EOFError
        yield from self[1:]


def the_guides_program_resumes(name):
    (block,) = (each for each in blocks_for("torch") if "os.replace" in each.text)

    def run(names):
        torch.manual_seed(1)
        try:
            exec(compile(block.text, block.name, "exec"), names)
        finally:
            names["compression"].close()
        return fw.digest_of(names["model"].parameters())

    first, whole = ({**COMMON, **prelude_of_torch(), "epochs": 3} for _ in range(2))
    assert "EOFError" in caught(run, {**first, "loader": Stops(first["loader"])})
    assert run(first) == run(whole)


def prelude_of_tensorflow():
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(64, activation="tanh"), tf.keras.layers.Dense(32)]
    model = tf.keras.Sequential(layers)
    model.build((None, 32))
    data = np.random.RandomState(hvd.rank()).standard_normal((16, 32)).astype("f4")
    return {
        "tf": tf,
        "model": model,
        "optimizer": tf.keras.optimizers.SGD(0.01, momentum=0.9),
        "loss_function": tf.keras.losses.MeanSquaredError(),
        "inputs": data,
        "targets": data,
        "dataset": tf.data.Dataset.from_tensor_slices((data, data)).batch(8),
    }


def train_tensorflow(names, own):
    model, optimizer = names["model"], names["optimizer"]
    if "hvd" not in names and "compression" in names:
        optimizer = DistributedOptimizer(optimizer, compression=names["compression"])
    if optimizer is own or names.get("tape") is not None:
        return None
    model.compile(optimizer, "mse")
    model.fit(names["inputs"], names["targets"], batch_size=8, epochs=1, shuffle=False, verbose=0)
    return model.get_weights()


def train(block, names, _):
    prelude, take_steps = {
        "torch": (prelude_of_torch, train_torch),
        "tensorflow": (prelude_of_tensorflow, train_tensorflow),
    }[NAME]
    if not block.goes_on:
        names.clear()
        names.update({**COMMON, **prelude()})
    own = names["optimizer"]
    exec(compile(block.text, block.name, "exec"), names)
    weights = take_steps(names, own)
    if weights is None:
        return {}
    compression = names.get("compression", names.get("compressor"))
    report = compression.stats() if hasattr(compression, "stats") else {}
    is_apart = type(compression) is fw.Compression._nothing
    digests = hvd.allgather_object(fw.digest_of(weights), name=f"{block.name}.alike")
    assert (len(set(digests)) == 1) is not is_apart
    return {"sparse_steps": report.get("sparse_steps"), "is_apart": is_apart}


if __name__ == "__main__":
    fw.begin(0)
    cases = _local_steps.cases
    if NAME == "torch":
        cases["the_guides_program_resumes"] = the_guides_program_resumes
    if NAME == "tensorflow":
        cases |= _tensorflow_programs.cases
    shared = {}
    fw.run(cases | {block.name: partial(train, block, shared) for block in blocks_for(NAME)})
