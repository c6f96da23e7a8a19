"""Programs whose models are built by their first batch."""

from functools import partial

import horovod.tensorflow.keras as keras_hvd
import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases
from _tensorflow_cases import Compression, digest_of, hvd, tape_gradients

from hvd_sparse.tensorflow import LogMetrics

FEATURES, BATCH_SIZE, EPOCHS, STEPS = 40, 4, 2, 3
RATE = 0.1

keras = tf.keras
cases = Cases()


def sequential():
    return keras.Sequential([keras.layers.Dense(50, activation="tanh"), keras.layers.Dense(3)])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(50), keras.layers.Dense(3)

    def call(self, inputs):
        return self.second(tf.tanh(self.first(inputs)))


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = None

    def __call__(self, inputs, training=False):
        if self.weight is None:
            self.weight = tf.Variable(tf.ones((FEATURES, 50)) / 50, name="weight")
            self.out = tf.Variable(tf.ones((50, 3)) / 50, name="out")
        return tf.tanh(inputs @ self.weight) @ self.out


MODELS = {"sequential": sequential, "subclassed": Subclassed, "module": Module}


def data():
    draw = np.random.default_rng(hvd.rank())
    return draw.standard_normal((8, FEATURES)).astype("f4"), draw.standard_normal((8, 3)).astype(
        "f4"
    )


def outcome_of(model, compressor):
    stats = compressor.stats()
    compressor.close()
    weights = digest_of(variable.numpy() for variable in model.trainable_variables)
    return {
        "weights": weights,
        **{key: stats[key] for key in ("steps", "sparse_steps", "entries_sent")},
    }


def with_tape(name, *, make, in_graph):
    keras.utils.set_random_seed(3)
    model, optimizer = make(), keras.optimizers.SGD(RATE)
    compressor = Compression.topk(model, density=0.5, name=name, **SPARSE_ONLY)
    inputs, labels = map(tf.constant, data())

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - labels) ** 2)
        tape = hvd.DistributedGradientTape(tape, compression=compressor)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    run = tf.function(step) if in_graph else step
    for number in range(STEPS):
        run()
        if number == 0:
            hvd.broadcast_variables(model.trainable_variables, root_rank=0)
    return outcome_of(model, compressor)


for kind, make in MODELS.items():
    for way in ("eager", "graph"):
        in_graph = way == "graph"
        cases[f"program_{kind}_{way}"] = partial(with_tape, make=make, in_graph=in_graph)


def fitted(name, *, callback=LogMetrics, **options):
    """Return a model that ``fit`` has built and trained, its compressor, and the logged values.

    callback : a callback, or its class, whose constructor gets the compressor
    """
    keras.utils.set_random_seed(3)
    model, optimizer = sequential(), keras.optimizers.SGD(RATE)
    chosen = {"density": 0.5, "name": name, "allow_dense": False, **options}
    compressor = Compression.topk(model, optimizer=optimizer, **chosen)
    optimizer = keras_hvd.DistributedOptimizer(optimizer, compression=compressor)
    model.compile(optimizer, "mse")
    callback = callback(compressor) if isinstance(callback, type) else callback
    callbacks = [keras_hvd.callbacks.BroadcastGlobalVariablesCallback(0), callback]
    history = model.fit(
        *data(), batch_size=BATCH_SIZE, epochs=EPOCHS, verbose=0, callbacks=callbacks
    ).history
    return model, compressor, history


def warm_up():
    return keras_hvd.callbacks.LearningRateWarmupCallback(
        RATE, warmup_epochs=EPOCHS, momentum_correction=False
    )


@cases
def callbacks_with_a_backend(name):
    found = {}
    made = {"warm_up": warm_up(), "metrics": keras_hvd.callbacks.MetricAverageCallback()}
    for kind, callback in made.items():
        callback.backend = keras.backend
        model, compressor, history = fitted(f"{name}.{kind}", callback=callback)
        told = {key: [float(value) for value in history.get(key, [])] for key in ("loss", "lr")}
        found[kind] = {**outcome_of(model, compressor), **told}
    return found


@cases
def watched(name):
    heard = []
    model, compressor, _ = fitted(name, telemetry=heard.append, telemetry_every=3)
    text = compressor.summary(all_ranks=True)
    return {**outcome_of(model, compressor), "records": heard, "summary": text}


@cases
def placement(name):
    weight = tf.Variable(tf.ones((FEATURES, 50)), name="weight")
    compressor = Compression.topk([weight], density=0.1, name=name, **SPARSE_ONLY)

    @tf.function
    def reduced():
        with tf.device("/GPU:0"):
            return tape_gradients(lambda: tf.reduce_sum(weight * weight), [weight], compressor)

    definition = reduced.get_concrete_function().graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    found = {}
    for node in nodes:
        kind = "other" if "hvd_sparse" not in node.name else node.op
        found.setdefault(kind, set()).add(node.device.rpartition("/device:")[2])
    compressor.close()
    functions = definition.library.function
    copies = sorted(copy for f in functions for copy in copies_of(f.node_def))
    return {"devices": {kind: sorted(each) for kind, each in found.items()}, "copies": copies}


def copies_of(nodes):
    known = {node.name: node for node in nodes}
    return [
        (kind_of(known[source]), kind_of(node))
        for node in nodes
        for source in (each.partition(":")[0] for each in node.input)
        if source in known and is_pinned(known[source]) != is_pinned(node)
    ]


def is_pinned(node):
    return bool(node.device.endswith("/device:CPU:0"))


def kind_of(node):
    return node.name.rpartition("/")[2] if "/hvd_sparse" in node.name else node.op
