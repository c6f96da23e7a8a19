"""One rank of ``python -m benchmarks step``: measures several ways to do the same work, which run
one after the other in each round."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks._ranks import RESULTS, report
from benchmarks.step.goals import BESIDE, DENSITY, OURS
from benchmarks.step.models import tensors_of
from benchmarks.step.replay import Replay
from benchmarks.step.worker import WARM, Rank, Turn, rounds
from hvd_sparse.ddp import register

GROUPS = 4
"""Groups of Horovod in TensorFlow: PyTorch's default makes about as many messages of ResNet-50."""


class Watch(list[float]):
    """CPU times of watched calls in seconds, measured in the threads that made them."""

    def watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            began = time.thread_time()
            result = function(*arguments)
            self.append(time.thread_time() - began)
            return result

        return watched


def large() -> list[Turn]:
    first, others = BESIDE["large"]
    return [_calls(method, "large", method) for method in (first, *others)]


def ddp() -> list[Turn]:
    """Return the turns with DDP. The only bucket's hook also finishes the step."""
    meeting = f"file://{os.environ[RESULTS]}/group"
    dist.init_process_group("gloo", meeting, rank=hvd.rank(), world_size=hvd.size())
    replay, watch = _replay("ddp"), Watch()
    model = DistributedDataParallel(replay.module(), bucket_cap_mb=replay.nbytes >> 20)
    compressor: Any = register(model, OURS, density=DENSITY)
    compressor.reduce = watch.watching(compressor.reduce)

    def step() -> None:
        model.zero_grad()
        model().backward()
        torch.autograd.graph.increment_version(replay.parameters)  # as an optimizer does
        if len(watch) != 1:
            raise AssertionError(f"DDP has made {len(watch)} buckets")

    floor = watch.watching(replay.add_to_residuals)
    return [_watched("residual.add_", replay, watch, floor), _watched("hook", replay, watch, step)]


def tensorflow() -> list[Turn]:
    """Return the turns with TensorFlow, whose work is that of the threads that run the graph."""
    import horovod.tensorflow as hvd_tf
    import tensorflow as tf

    from hvd_sparse.tensorflow import Compression

    class Given(tf.GradientTape):
        def gradient(self, target: Any, *_: Any) -> Any:
            return target

    hvd_tf.init()
    others = _threads()  # this one, and Horovod's
    replay = _replay("resnet50")
    variables = [tf.Variable(tf.zeros(parameter.shape)) for parameter in replay.parameters]

    def worked() -> float:  # Linux numbers a thread's clock so
        return sum(time.clock_gettime(~thread << 3 | 6) for thread in _threads() - others)

    def turn(name: str, groups: int | None) -> Turn:
        watch = Watch()
        compression = getattr(Compression, OURS)(lambda: variables, density=DENSITY)
        tape = hvd_tf.DistributedGradientTape(Given(), compression=compression, groups=groups)
        reduce = tf.function(lambda gradients: tape.gradient(gradients, variables))

        def step() -> None:
            gradients = map(replay.gradient, range(len(variables)))
            given, before = [tf.constant(gradient.numpy()) for gradient in gradients], worked()
            reduce(given)
            watch.append(worked() - before)

        return _watched(name, replay, watch, step)

    alone, grouped = (*BESIDE["tensorflow"][1],)
    return [_calls("torch", "resnet50", OURS), turn(alone, None), turn(grouped, GROUPS)]


def _threads() -> set[int]:
    return set(map(int, os.listdir("/proc/self/task")))


def _replay(model: str) -> Replay:
    return Replay([shape for _, shape in tensors_of(model)], seed=hvd.rank() + 1)


def _calls(name: str, model: str, method: str) -> Turn:
    """Return a turn: a step of Horovod's optimizer, with the work of the compressor's two calls."""
    rank = Rank(model, method, DENSITY)
    rank.warm_up()

    def turn() -> dict[str, float]:
        row = rank.plain()
        return {name: row["compress"] + row["decompress"]}

    return turn


def _watched(name: str, replay: Replay, watch: Watch, step: Callable[[], Any]) -> Turn:
    """Return a turn: a step with new gradients. Some steps are made before, for the thresholds."""
    numbers = itertools.count(1)

    def take() -> dict[str, float]:
        watch.clear()
        hvd.barrier()
        step()
        return {name: sum(watch)}

    def turn() -> dict[str, float]:
        replay.draw(next(numbers))
        return take()

    replay.draw_steady(DENSITY, 1.0)
    take()
    for _ in range(WARM):
        turn()
    return turn


if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    turns = {"large": large, "ddp": ddp, "tensorflow": tensorflow}[sys.argv[1]]()
    report(hvd.rank(), rounds(turns, seconds=float(sys.argv[2])))
    hvd.barrier()
