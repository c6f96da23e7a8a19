"""Examples train on two real ranks: those of the papers a few steps each, on small files."""

import json
import math

import pytest
from example_data import make_cifar10, make_image_folder, make_penn_treebank
from harness import launch_example

RANKS = 2
REPLICAS = "check_replicas_every=1"
"""Every step compares what the ranks have applied: replicas that part are an error."""
CIFAR = "--batch-size=16 --lr=0.02 --warmup-epochs=1"
RESNET_20 = f"{CIFAR} --epochs=4 --method=ldte_bs,{REPLICAS} --density=0.05"
VGG_16 = f"{CIFAR} --epochs=1 --steps=2 --model=vgg16 --optimizer=adamw --warmup=none"
SCALECOM = f"scalecom,variant=paper,warmup_steps=1,{REPLICAS}"
RESNET_50 = (
    "--epochs=1 --batch-size=4 --image-size=64 --steps=2 --loaders=1 --warmup=dense "
    f"--warmup-epochs=0 --method=ldte_bs,{REPLICAS}"
)
PTB = "--batch-size=4 --width=48 --dropout=0 --words=10"
LSTM = f"{PTB} --epochs=3 --density=0.05 --optimizer=adamw --lr=0.01"
BASELINE = f"{PTB} --epochs=1 --steps=4 --method=none"  # clips behind Horovod or before it
# two of eight steps are those of a warm-up
RARE = {"bytes_per_step": (1, 0.9 * 4 * 269_722)}
RARE_IN_50 = {"bytes_per_step": (1, 0.05 * 4 * 23_512_130)}
LEARNED = {"test_perplexity": (1, 12)}  # of 21 words, each of which tells the next one
KNOWN = {"test_accuracy": (0.7, 1), "density_achieved": (0.015, 0.03)}
KNOWN_IN_KERAS = {"test_accuracy": (0.8, 1), "density_achieved": (0, 0.06)}
IN_KERAS = "--density=0.05 --epochs=4 --momentum=0.5"
EXAMPLES = [
    ("pytorch_cifar10", "gloo", RESNET_20, 4, 2, RARE),
    ("tensorflow2_keras_cifar10", "mpi", RESNET_20, 4, 2, RARE),
    ("pytorch_cifar10", "mpi", f"{VGG_16} --method={SCALECOM}", 1, 2, {}),
    ("tensorflow2_keras_cifar10", "gloo", f"{VGG_16} --method=fp16", 1, 2, {}),
    ("pytorch_imagenet", "gloo", RESNET_50, 1, 2, RARE_IN_50),
    ("pytorch_ptb", "gloo", f"{LSTM} --method=dgc,{REPLICAS}", 3, 19, LEARNED),
    ("tensorflow2_keras_ptb", "mpi", f"{LSTM} --method=ldte_bs,{REPLICAS}", 3, 19, LEARNED),
    ("pytorch_ptb", "mpi", BASELINE, 1, 4, {}),
    ("tensorflow2_keras_ptb", "gloo", BASELINE, 1, 4, {}),
    ("pytorch_ddp_digits", "torchrun", "--density=0.02 --epochs=6 --momentum=0.5", 6, 21, KNOWN),
    ("tensorflow2_keras3_digits", "mpi", IN_KERAS, 4, 21, KNOWN_IN_KERAS),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_cifar10(folder / "cifar10")
    make_image_folder(folder / "imagenet")
    make_penn_treebank(folder / "ptb")
    return folder


@pytest.mark.parametrize(("script", "controller", "options", "epochs", "steps", "bounds"), EXAMPLES)
def test_an_example_trains(script, controller, options, epochs, steps, bounds, data, tmp_path):
    log, task = tmp_path / "log.jsonl", script.rpartition("_")[2]
    records = tmp_path / "records.jsonl"
    files = f"--telemetry={records}" if task == "digits" else f"--data={data / task}"
    words = (files, f"--log-json={log}", *options.split())
    outcome = launch_example(f"{script}.py", RANKS, controller, *words)
    assert outcome.code == 0, outcome.end
    *each, summary = (json.loads(line) for line in log.read_text().splitlines())
    result = "test_perplexity" if task == "ptb" else "test_accuracy"
    assert [line["epoch"] for line in each] == list(range(1, epochs + 1))
    assert all(math.isfinite(line["train_loss"]) and line[result] >= 0 for line in each)
    if epochs > 1:
        assert each[-1]["train_loss"] < each[0]["train_loss"]
    assert summary["event"] == "summary" and summary["steps"] == epochs * steps
    assert summary[result] == each[-1][result] and summary["bytes_per_step"] > 0
    assert all(low < summary[key] < high for key, (low, high) in bounds.items()), summary
    assert task != "digits" or "test_accuracy" in records.read_text()
