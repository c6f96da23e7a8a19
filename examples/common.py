"""Helpers of all examples: they split data over ranks, count sent bytes, and log a run."""

import argparse
import contextlib
import json
import math
import statistics
import time
from pathlib import Path

from hvd_sparse.telemetry.jsonl import JsonLines

STOCK = ("none", "fp16")  # Horovod's own compressors
FORMATS = {"test_accuracy": ".2%", "test_perplexity": ".2f"}


def positive(text):
    """Return a whole number of at least 1 from its text, for ``argparse``."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def shard(arrays, rank, size, batch_size=1):
    """Return this rank's part of the arrays. The parts of all ranks have the same length.

    A rank with one batch more than the others would wait forever in its last allreduce.
    """
    length = len(arrays[0]) // size * size
    if length // size < batch_size:
        raise SystemExit(f"{length // size} images a worker are less than a batch of {batch_size}")
    return tuple(array[rank:length:size] for array in arrays)


class Counter:
    """A counter with ``assign_add``, the only method of tf.Variable that Metered needs."""

    def __init__(self):
        self.value = 0

    def assign_add(self, amount):
        self.value += amount

    def __int__(self):
        return self.value


def static_size(tensor):
    """Return the number of a tensor's entries, from its static shape."""
    return math.prod(tensor.shape)


class Metered:
    """One of Horovod's own compressors, wrapped to count the bytes that it passes to the allreduce.

    TensorFlow calls ``compress`` only when it traces a graph. So ``counter`` must be a tf.Variable
    there, because its ``assign_add`` becomes a part of the graph and runs in every step.
    ``size_of`` returns the number of a tensor's entries. ``telemetry`` is the path of a JSON lines
    file for the bytes and metrics of a run, in the format of hvd_sparse's records.
    """

    def __init__(self, compressor, counter, size_of=static_size, telemetry=None):
        self.compressor = compressor
        self.counter = counter
        self.size_of = size_of
        self.sink = JsonLines(telemetry).open() if telemetry else None
        self.told = (0, 0)  # steps and bytes at the last record

    def compress(self, tensor):
        compressed, context = self.compressor.compress(tensor)
        itemsize = getattr(compressed.dtype, "itemsize", None) or compressed.dtype.size
        self.counter.assign_add(self.size_of(compressed) * itemsize)
        return compressed, context

    def decompress(self, tensor, context):
        return self.compressor.decompress(tensor, context)

    def log(self, step, **metrics):
        if self.sink:
            steps, sent = self.told
            self.told = step, int(self.counter)
            bytes_sent = (self.told[1] - sent) / (step - steps)
            self.sink.log(step=step, bytes_sent=bytes_sent, **metrics)

    def stats(self):
        return {"bytes_sent": int(self.counter), "density_asked": 1.0, "density_achieved": 1.0}


class Log:
    """Rank 0's log of a run, on the terminal and in a JSON lines file. Other ranks log nothing.

    If ``compression`` is given, its method ``log`` also gets the results of every epoch.
    """

    def __init__(self, args, rank, compression=None):
        self.args = args
        self.compression = compression
        self.speaks = rank == 0
        self.step_seconds = []
        self.results = {}
        self.path = Path(args.log_json) if self.speaks and args.log_json else None
        if self.path:
            self.path.write_text("")

    def begin_step(self):
        self.step_started = time.perf_counter()

    def end_step(self):
        self.step_seconds.append(time.perf_counter() - self.step_started)

    @contextlib.contextmanager
    def step(self):
        """Time one training step."""
        self.begin_step()
        yield
        self.end_step()

    def epoch(self, epoch, train_loss, **results):
        """Log an epoch. The names of ``results`` are keys of ``FORMATS``."""
        self.results = {name: float(value) for name, value in results.items()}
        self._write(event="epoch", epoch=epoch, train_loss=float(train_loss), **self.results)
        if self.compression:
            self.compression.log(step=len(self.step_seconds), train_loss=train_loss, **self.results)
        words = "".join(
            f"  {name.replace('_', ' ')} {value:{FORMATS[name]}}"
            for name, value in self.results.items()
        )
        self._say(f"epoch {epoch:3d}  training loss {train_loss:.4f}{words}")

    def summary(self, compression):
        """Log a summary of the run. It counts only the bytes that this rank sent."""
        stats = compression.stats()
        bytes_per_step = stats["bytes_sent"] / len(self.step_seconds)
        # The median, because the first steps also trace graphs and fill caches.
        step_seconds = statistics.median(self.step_seconds)
        self._write(
            event="summary",
            compression=self.args.compression,
            **self.results,
            steps=len(self.step_seconds),
            bytes_per_step=bytes_per_step,
            density_asked=stats["density_asked"],
            density_achieved=stats["density_achieved"],
            step_seconds=step_seconds,
            training_seconds=sum(self.step_seconds),
        )
        self._say(
            f"{bytes_per_step:,.0f} bytes per step and worker, {step_seconds:.4f} seconds per step "
            "(median)"
        )

    def _write(self, **line):
        if self.path:
            with open(self.path, "a") as file:
                print(json.dumps(line), file=file)

    def _say(self, text):
        if self.speaks:
            print(text, flush=True)
