"""Worker, under horovodrun: TensorFlow with gradients on a GPU, and the devices on which our
operations ran.

Reports the bits of the results with the GPU and with the CPU, and for each of our operations the
devices that ran it. Reports nothing if TensorFlow finds no GPU. With
``HVD_SPARSE_TEST_DEVICE=cpu``, the CPU stands for the GPU, to test this program.
"""

import hashlib
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from harness import report
from tensorflow.python.eager import context

from hvd_sparse.tensorflow import Compression

STEPS = 4
SHAPE = (40, 50)


def accelerator():
    if os.environ.get("HVD_SPARSE_TEST_DEVICE") == "cpu":
        return "/CPU:0"
    found = tf.config.list_physical_devices("GPU")
    if not found:
        return None
    tf.config.set_visible_devices(found[hvd.local_rank() % len(found)], "GPU")
    return "/GPU:0"


def steps(device, name):
    with tf.device(device):
        weight = tf.Variable(tf.zeros(SHAPE), name=f"weight_{name}")
    compressor = Compression.topk([weight], density=0.1, name=name, min_numel=1, allow_dense=False)

    @tf.function
    def reduced(chosen):
        with tf.device(device):
            with tf.GradientTape() as plain:
                loss = tf.reduce_sum(weight * chosen)
            tape = hvd.DistributedGradientTape(plain, compression=compressor)
            return tape.gradient(loss, [weight])[0]

    applied = hashlib.sha256()
    context.enable_run_metadata()  # of the first step, at which the graph is placed
    for step in range(STEPS):
        draw = np.random.default_rng(10 * step + hvd.rank())
        chosen = tf.constant(np.round(8 * draw.normal(size=SHAPE)).astype(np.float32))
        applied.update(reduced(chosen).numpy().tobytes())
        if step == 0:
            placed = context.export_run_metadata().partition_graphs
            context.disable_run_metadata()
    compressor.close()
    ran = {}
    for node in (node for graph in placed for node in graph.node):
        # Horovod's allreduce of the carrier runs where the tape does.
        if "hvd_sparse" in node.name and node.op in ("PyFunc", "HorovodAllgather"):
            kind = node.name.rpartition("/")[2]
            ran.setdefault(kind, set()).add(node.device.rpartition("/device:")[2])
    return {
        "applied": applied.hexdigest()[:16],
        "ran": {kind: sorted(devices) for kind, devices in sorted(ran.items())},
    }


def main():
    hvd.init()
    device = accelerator()
    found = {}
    if device is not None:
        found = {"expected": steps("/CPU:0", "cpu"), "found": steps(device, "gpu")}
    report(hvd.rank(), found)
    hvd.allreduce(tf.zeros(1), name="end")
    hvd.shutdown()


if __name__ == "__main__":
    main()
