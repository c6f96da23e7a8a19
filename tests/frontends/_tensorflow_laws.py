"""Cases of a timeline, and of the names of groups in traces."""

import os
import tempfile
from collections import Counter

import tensorflow as tf
from _common import SPARSE_ONLY, Cases
from _laws import books_of
from _tensorflow_cases import Compression, hvd, linear_loss, tape_gradients, variables_of

from hvd_sparse.cli.timeline import read_trace
from hvd_sparse.tracing import SETTING, path_of

LAWS = Cases()
SHAPES = ((40, 30), (50,), (8, 8, 3))


def horovod_operations(traced):
    library = traced.graph.as_graph_def().library
    nodes = [node for function in library.function for node in function.node_def]
    return sorted(node.name for node in nodes if node.op.startswith("Horovod"))


@LAWS
def timeline(name):
    os.environ[SETTING] = f"{tempfile.mkdtemp()}/ours.json"
    try:
        books = books_of(name)
        for step in range(20):
            books.take_step(books.gradients(step))
        books.compressor.close()
        events = read_trace(path_of(os.environ[SETTING], hvd.rank()))
    finally:
        del os.environ[SETTING]
    return Counter(event["name"] for event in events if event["ph"] == "X")


@LAWS
def names_of_groups_are_those_of_other_ranks_and_traces(name):
    variables = variables_of([*SHAPES, (7, 9), (9, 5)])
    compressor = Compression.topk(variables, density=0.1, name=name, **SPARSE_ONLY)

    @tf.function(reduce_retracing=False)
    def step(batch):
        coefficients = [
            None if i == 1 else tf.reduce_mean(batch) * tf.ones(v.shape)
            for i, v in enumerate(variables)
        ]
        return tape_gradients(linear_loss(variables, coefficients), variables, compressor, groups=2)

    names = []
    for size in (1, 2, 3):
        step(tf.ones(size))
        names.append(horovod_operations(step.get_concrete_function(tf.TensorSpec([size]))))
    compressor.close()
    return names


@LAWS
def names_that_elastic_runs_know(name):
    """Horovod recovers only from errors of operations with its own names."""
    (variable,), names = variables_of([(30, 20)]), []
    for exchange in ("allgather", "oktopk", "shared_index"):
        options = {"exchange": exchange, "name": f"{name}.{exchange}", **SPARSE_ONLY}
        compressor = Compression.topk([variable], density=0.1, **options)

        @tf.function
        def step(compressor=compressor):
            loss = linear_loss([variable], [tf.ones(variable.shape)])
            return tape_gradients(loss, [variable], compressor)

        names += horovod_operations(step.get_concrete_function())
        compressor.close()
    return names
