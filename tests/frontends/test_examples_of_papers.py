"""The examples of the papers train on two real ranks, a few steps each, on small files."""

import json
import math

import pytest
from example_data import make_cifar10, make_image_folder, make_penn_treebank
from harness import launch_example

RANKS = 2
REPLICAS = "check_replicas_every=1"
"""Every step compares what the ranks have applied: replicas that part are an error."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_cifar10(folder / "cifar10")
    make_image_folder(folder / "imagenet")
    make_penn_treebank(folder / "ptb")
    return folder


def run(script, controller, folder, *arguments):
    log = folder / f"{script}.jsonl"
    outcome = launch_example(script, RANKS, controller, *arguments, f"--log-json={log}")
    assert outcome.code == 0, outcome.end
    return [json.loads(line) for line in log.read_text().splitlines()]


def check(lines, epochs, steps, result):
    *each, summary = lines
    assert [line["epoch"] for line in each] == list(range(1, epochs + 1))
    assert all(math.isfinite(line["train_loss"]) and line[result] >= 0 for line in each)
    if epochs > 1:
        assert each[-1]["train_loss"] < each[0]["train_loss"]
    assert summary["event"] == "summary" and summary["steps"] == epochs * steps
    assert summary[result] == each[-1][result] and summary["bytes_per_step"] > 0


CIFAR = ["--batch-size", "16", "--lr", "0.02", "--warmup-epochs", "1"]
PTB = ["--batch-size", "4", "--width", "48", "--dropout", "0", "--words", "10"]


@pytest.mark.parametrize(
    ("script", "controller"),
    [("pytorch_cifar10.py", "gloo"), ("tensorflow2_keras_cifar10.py", "mpi")],
)
def test_resnet_20_trains_on_cifar10(script, controller, data, tmp_path):
    lines = run(
        script, controller, tmp_path, f"--data={data / 'cifar10'}", *CIFAR, "--epochs=4",
        f"--method=ldte_bs,{REPLICAS}", "--density=0.05",
    )  # fmt: skip
    check(lines, 4, 2, "test_accuracy")
    assert lines[-1]["compression"].startswith("ldte_bs") and lines[-1]["density_asked"] == 0.05
    dense = 4 * 269_722
    assert lines[-1]["bytes_per_step"] < 0.9 * dense, "two of eight steps are those of a warm-up"


@pytest.mark.parametrize(
    ("script", "controller", "method"),
    [
        ("pytorch_cifar10.py", "mpi", f"scalecom,variant=paper,warmup_steps=1,{REPLICAS}"),
        ("tensorflow2_keras_cifar10.py", "gloo", "fp16"),
    ],
)
def test_vgg_16_trains_on_cifar10_with_adamw(script, controller, method, data, tmp_path):
    lines = run(
        script, controller, tmp_path, f"--data={data / 'cifar10'}", *CIFAR, "--epochs=1",
        "--model=vgg16", f"--method={method}", "--optimizer=adamw", "--steps=2", "--warmup=none",
    )  # fmt: skip
    check(lines, 1, 2, "test_accuracy")


def test_resnet_50_trains_on_folders_of_images(data, tmp_path):
    lines = run(
        "pytorch_imagenet.py", "gloo", tmp_path, f"--data={data / 'imagenet'}", "--epochs=1",
        "--batch-size=4", "--image-size=64", "--steps=2", "--loaders=1",
        f"--method=ldte_bs,{REPLICAS}", "--warmup=dense", "--warmup-epochs=0",
    )  # fmt: skip
    check(lines, 1, 2, "test_accuracy")
    assert lines[-1]["bytes_per_step"] < 0.05 * 4 * 23_512_130, "its 23.5 million entries"


@pytest.mark.parametrize(
    ("script", "controller", "method"),
    [("pytorch_ptb.py", "gloo", "dgc"), ("tensorflow2_keras_ptb.py", "mpi", "ldte_bs")],
)
def test_an_lstm_learns_penn_treebank_with_adamw(script, controller, method, data, tmp_path):
    lines = run(
        script, controller, tmp_path, f"--data={data / 'ptb'}", *PTB, "--epochs=3",
        f"--method={method},{REPLICAS}", "--density=0.05", "--optimizer=adamw", "--lr=0.01",
    )  # fmt: skip
    check(lines, 3, 19, "test_perplexity")
    assert lines[-2]["test_perplexity"] < 12, "of 21 words, each of which tells the next one"


@pytest.mark.parametrize(
    ("script", "controller"), [("pytorch_ptb.py", "mpi"), ("tensorflow2_keras_ptb.py", "gloo")]
)
def test_the_baseline_clips_behind_horovod_or_before(script, controller, data, tmp_path):
    lines = run(
        script, controller, tmp_path, f"--data={data / 'ptb'}", *PTB, "--epochs=1", "--method=none",
        "--steps=4",
    )  # fmt: skip
    check(lines, 1, 4, "test_perplexity")
