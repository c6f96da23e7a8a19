"""Programs whose models are built by their first batch."""

from functools import partial

import horovod.tensorflow.keras as keras_hvd
import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases
from _tensorflow_cases import Compression, are_alike, digest_of, hvd, tape_gradients

from hvd_sparse.tensorflow import LogMetrics

FEATURES, BATCH_SIZE, EPOCHS, STEPS = 40, 4, 2, 3
RATE = 0.1

keras = tf.keras
cases = Cases()


def sequential():
    return keras.Sequential([keras.layers.Dense(50, activation="tanh"), keras.layers.Dense(3)])


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = None

    def __call__(self, inputs, training=False):
        if self.weight is None:
            self.weight = tf.Variable(tf.ones((FEATURES, 50)) / 50, name="weight")
            self.out = tf.Variable(tf.ones((50, 3)) / 50, name="out")
        return tf.tanh(inputs @ self.weight) @ self.out


def data():
    draw = np.random.default_rng(hvd.rank())
    return [draw.standard_normal((8, width)).astype("f4") for width in (FEATURES, 3)]


def check_replicas(name, model, compressor, steps, told=()):
    """Check that ranks have the same weights, and were told the same, after some steps."""
    stats = compressor.stats()
    compressor.close()
    weights = digest_of(variable.numpy() for variable in model.trainable_variables)
    assert are_alike([weights, told], name)
    assert stats["steps"] == steps and stats["sparse_steps"] > 0, stats
    return stats


def with_tape(name, *, in_graph):
    """A model that its first batch builds trains with the tape."""
    model, optimizer = Module(), keras.optimizers.SGD(RATE)
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
    stats = check_replicas(name, model, compressor, STEPS)
    assert stats["sparse_steps"] == STEPS * len(model.trainable_variables)
    assert stats["entries_sent"] > 0


cases["program_eager"] = partial(with_tape, in_graph=False)
cases["program_graph"] = partial(with_tape, in_graph=True)


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
def horovods_callbacks_of_keras_2_work_once_they_have_its_backend(name):
    made = {"warm_up": warm_up(), "metrics": keras_hvd.callbacks.MetricAverageCallback()}
    for kind, callback in made.items():
        callback.backend = keras.backend
        model, compressor, history = fitted(f"{name}.{kind}", callback=callback)
        told = [float(each) for each in history["loss" if kind == "metrics" else "lr"]]
        check_replicas(f"{name}.{kind}", model, compressor, 2 * EPOCHS, told)
        if kind == "warm_up":
            np.testing.assert_allclose(told, [0.075, 0.1], rtol=1e-6)


@cases
def a_fit_is_watched_by_writers_and_a_callback(name):
    heard = []
    model, compressor, _ = fitted(name, telemetry=heard.append, telemetry_every=3)
    of_all = compressor.summary(all_ranks=True).partition("all ranks")[2]
    check_replicas(name, model, compressor, 2 * EPOCHS, of_all)
    assert of_all
    events = [(each["event"], each["step"]) for each in heard]
    metrics = [each for each in heard if each["event"] == "metrics"]
    # 2 epochs of 2 batches: a record at steps 1 and 3, metrics of the third batch and both epochs.
    steps = {"metrics": [2, 3, 4], "run": [0], "step": [1, 3]}
    expected = [(event, step) for event in steps for step in steps[event]]
    assert sorted(events) == (expected if hvd.rank() == 0 else []), events
    assert all(each["loss"] > 0 for each in metrics), metrics
    for each in heard:
        if each["event"] == "step":
            (told,) = each["tensors"].values()  # of 4 tensors only the large one is compressed
            assert told["density_achieved"] == 0.5 and told["exchange_s"] > 0, told


@cases
def placement(name):
    """In a graph that is traced for a GPU, what numpy does and our collectives are pinned to the
    host, so TensorFlow copies a gradient to the host once, and its result back once."""
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
    assert found["PyFunc"] == found["HorovodAllgather"] == {"CPU:0"}, found
    assert "GPU:0" in found["other"], "the program itself is not on the GPU"
    crossing = [copy for f in definition.library.function for copy in copies_of(f.node_def)]
    flat, result = ("Reshape", "hvd_sparse_send"), ("hvd_sparse_receive", "Reshape")
    assert crossing.count(flat) == crossing.count(result) == 1, crossing
    # The others are a name, what stands for no parameter, and the carrier, there and back.
    assert len(crossing) == 7, crossing


def copies_of(nodes):
    known = {node.name: node for node in nodes}
    edges = [
        (known[source], node)
        for node in nodes
        for source in (each.partition(":")[0] for each in node.input)
        if source in known
    ]
    host = "/device:CPU:0"
    return [
        (kind_of(one), kind_of(other))
        for one, other in edges
        if one.device.endswith(host) != other.device.endswith(host)
    ]


def kind_of(node):
    return node.name.rpartition("/")[2] if "/hvd_sparse" in node.name else node.op
