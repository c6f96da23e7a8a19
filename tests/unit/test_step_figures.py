"""What ``bench step`` computes from its rows, judges, and hands over; real ranks are elsewhere."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

from hvd_sparse.tracing.spans import Spans

torch = pytest.importorskip("torch", reason="the bench is written in torch")
for package in ("horovod.torch", "matplotlib"):
    pytest.importorskip(package, reason="the bench needs it", exc_type=ImportError)

from benchmarks import stepping  # noqa: E402 - they import torch and Horovod
from benchmarks.step import meter  # noqa: E402
from benchmarks.step.goals import verdicts  # noqa: E402
from benchmarks.step.models import OVERHEAD, tensors_of  # noqa: E402
from benchmarks.step.replay import Replay  # noqa: E402
from benchmarks.step.summary import summarize  # noqa: E402

SENT = {"sparse_steps": 8, "dense_steps": 0, "one_pass": 6}


def row(**changed):
    """A round, in seconds, of two compressed tensors and four dense ones."""
    usual = {
        **{"floor": 1e-3, "floor_wall": 2e-3, "wall": 20e-3, "process": 9e-3, "faults": 5.0},
        **{"compress": 2e-3, "decompress": 1e-3, "sparse": 2.8e-3, "dense": 0.2e-3},
        **{"sparse_tensors": 2.0, "dense_tensors": 4.0},
        **{"select": 1e-3, "encode": 0.25e-3, "exchange": 0.25e-3, "decode": 0.5e-3},
        "python": 1e-3,
    }
    return {**usual, **changed}


def summary_of(rows, *, model="resnet50", method="ldte_bs", ranks=2, sent=SENT):
    found = {"model": model, "gradient_bytes": 5 * 4096 * 10, "sent": sent}
    return summarize(method, ranks, [found] * ranks, rows)


def test_ratios_are_of_one_round():
    """The slow round's floor was slow too."""
    found = summary_of([row(), row(compress=20e-3, decompress=10e-3, floor=10e-3), row()])
    assert found.work.low == found.work.median == found.work.high == pytest.approx(3.0)
    assert found.work_ms.median == pytest.approx(3.0)


def test_the_parts_are_times_the_floor():
    found = summary_of([row()])
    parts = {part: quartiles.median for part, quartiles in found.parts.items()}
    expected = {"select": 1.0, "encode": 0.25, "exchange": 0.25, "decode": 0.5, "python": 1.0}
    assert parts == pytest.approx(expected)


def page_of(folder, found=(), left_out=()):
    """The page of some summaries."""
    asked = {"density": 0.001, "quick": False, "seconds": 1.0, "output": folder}
    bench = stepping.Bench(argparse.Namespace(models=[], methods=[], ranks=[2], **asked))
    bench.summaries, bench.left_out = list(found), list(left_out)
    return stepping.write_page(bench, {"here": "1"})


@pytest.mark.parametrize(("work_s", "verdict"), [(2.0e-3, "met"), (2.1e-3, "missed by 1.05 times")])
def test_a_goal_is_met_up_to_its_limit_and_stands_on_the_page(work_s, verdict, tmp_path):
    found = summary_of([row(compress=work_s, decompress=0.0)])
    (told,) = verdicts([found], density=0.001)
    assert told[-1] == verdict
    assert "| " + " | ".join(told) + " |" in page_of(tmp_path, [found])


def test_every_goal_is_judged_where_everything_was_measured():
    models = ("resnet50", "transformer", "lstm", "vgg16", OVERHEAD)
    handed = [f"ldte_bs,optimizer={each}" for each in ("sgd", "nesterov", "adam")]
    found = [summary_of([row()], model=model) for model in models]
    slower = [row(compress=4e-3, decompress=2e-3)]
    found += [summary_of(slower, model=m, method=x) for m in models for x in ("dgc", *handed)]
    told = list(verdicts(found, density=0.001))
    assert [goal for _, _, goal, _ in told] == [
        *("≤ 2", "≤ 2.5", "≤ 1.4", "≤ 1.5", "≤ 40", "≤ 60", "≤ 60", "≤ 8"),
        *(["≤ 1.5"] * 4 + ["≤ 3.5"] * 4 + ["≤ 2.5"] * 4),
    ]
    assert {measured for _, measured, _, _ in told[8:]} == {"2.00"}


def test_a_backward_pass_hands_over_every_gradient_as_it_lies_from_the_last_to_the_first():
    shapes = [shape for _, shape in tensors_of(OVERHEAD)][:6]
    replay, order = Replay(shapes, seed=1), []
    replay.draw(1)
    expected = [replay.gradient(position).clone() for position in range(len(shapes))]
    for position, parameter in enumerate(replay.parameters):
        parameter.register_post_accumulate_grad_hook(
            lambda parameter, position=position: order.append(position)
        )
    replay.loss().backward()
    assert order == [5, 4, 3, 2, 1, 0]
    for position, parameter in enumerate(replay.parameters):
        replay.check_handed_over(position)
        assert torch.equal(parameter.grad, expected[position])
        assert parameter.grad.any()
    replay.parameters[2].grad = replay.parameters[2].grad.clone()
    with pytest.raises(AssertionError, match="copied the gradient of parameter 2"):
        replay.check_handed_over(2)


class Worker:
    """A compressor whose thread's clock goes on by a known amount where it works."""

    def __init__(self, clock):
        self.step = SimpleNamespace(spans=Spans())
        self._clock = clock

    def compress(self, tensor):
        self._clock.now += 10.0
        began = self.step.spans.now()
        self._clock.now += 4.0
        self.step.spans.tell("select", "a", began)
        meter.hvd.poll(0)
        return tensor, None

    def decompress(self, tensor, context):
        self._clock.now += 1.0
        return tensor


def test_a_traced_step_is_divided_into_its_parts(monkeypatch):
    """The clock takes half a second by itself whenever it is asked, which is in no figure."""
    clock = SimpleNamespace(now=0.0)

    def thread_time():
        clock.now += 0.5
        return clock.now

    def poll(handle):
        clock.now += 3.0

    monkeypatch.setattr(meter.time, "thread_time", thread_time)
    monkeypatch.setattr(meter.hvd, "poll", poll)
    measured = meter.Meter(Worker(clock))
    with measured.tracing():
        wire, context = measured.compress(torch.zeros(64, 64))
        meter.hvd.poll(0)  # Horovod's optimizer, for itself
        measured.decompress(wire, context)
    told = {part: measured.seconds[part] for part in meter.PARTS}
    expected = {"select": 4.0, "encode": 0.0, "exchange": 3.0, "decode": 0.0, "python": 11.0}
    assert told == pytest.approx(expected)
    assert measured.calls == {"sparse": 1}
    assert meter.hvd.poll is poll
