"""What the examples of the papers read, and their networks and learning rates."""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from example_data import make_cifar10

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("recipes", "common", "demo_table"):
            del sys.modules[name]


def options(*arguments, recipe="CIFAR10", monkeypatch=None):
    from recipes import options as module

    chosen = getattr(module, recipe)
    monkeypatch.setattr(sys, "argv", ["example", "--data", "d", *arguments])
    return module.read_arguments(module.make_parser("", chosen), chosen)


def test_cifar10_says_what_it_lacks(tmp_path):
    from recipes import cifar10

    make_cifar10(tmp_path, images=2)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(SystemExit, match=r"lacks data_batch_3: --data wants the unpacked CIFAR-10"):
        cifar10.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet20", 269_722), ("vgg16", 14_724_042), ("resnet50", 25_557_032)]
)
def test_networks_of_pytorch_have_the_published_sizes(name, parameters):
    torch = pytest.importorskip("torch")
    from recipes import torch_networks

    network = getattr(torch_networks, name)()
    assert sum(p.numel() for p in network.parameters()) == parameters
    side, classes = (64, 1000) if name == "resnet50" else (32, 10)
    assert network(torch.zeros(2, 3, side, side)).shape == (2, classes)


def test_rates_warm_up_and_fall(monkeypatch):
    from recipes.options import rate_at

    args = options(monkeypatch=monkeypatch)
    assert [rate_at(args, epoch, 4) for epoch in (0, 2.5, 5)] == pytest.approx([0.1, 0.25, 0.4])
    assert rate_at(args, 102.5, 4) == pytest.approx(0.2) and rate_at(args, 200, 4) == 0
    args = options(recipe="IMAGENET", monkeypatch=monkeypatch)
    rates = [rate_at(args, epoch, 8) for epoch in (29.9, 30, 60, 80)]
    assert rates == pytest.approx([0.1, 0.01, 0.001, 0.0001])
    args = options(recipe="PENN_TREEBANK", monkeypatch=monkeypatch)
    assert [rate_at(args, epoch, 4) for epoch in (0, 62, 63)] == pytest.approx([22, 22, 2.2])
    args = options("--optimizer", "adamw", monkeypatch=monkeypatch)
    assert rate_at(args, 5, 4) == 0.001
    args = options("--optimizer", "adamw", "--scale-lr", "--lr", "1", monkeypatch=monkeypatch)
    assert rate_at(args, 5, 4) == 4


@pytest.mark.parametrize("option", ["--epochs", "--batch-size", "--steps"])
def test_no_epochs_and_no_batches_are_refused(option, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        options(option, "0", monkeypatch=monkeypatch)
    assert f"argument {option}: 0 is less than 1" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["none", "signsgd", "topk,density=0.5"])
def test_a_density_without_effect_is_refused(method, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        options("--method", method, "--density", "0.1", monkeypatch=monkeypatch)
    assert f"--density has no effect with --method {method}" in capsys.readouterr().err


def test_images_that_fill_no_batch_are_refused_on_every_rank(monkeypatch):
    from common import shard

    assert [len(each) for each in shard([range(9), range(9)], 1, 2, 4)] == [4, 4]
    with pytest.raises(SystemExit, match="4 images a worker are less than a batch of 5"):
        shard([range(9)], 1, 2, 5)


def test_the_perplexity_of_a_training_that_diverged_is_infinite():
    from recipes.penn_treebank import perplexity

    assert [perplexity(loss) for loss in (0.0, 1e4)] == [1.0, float("inf")]
    assert perplexity(float("nan")) != perplexity(float("nan"))


def test_the_table_of_the_demo_has_a_dash_if_all_steps_were_dense(capsys):
    console = pytest.importorskip("rich.console").Console(width=120)
    from demo_table import print_table

    summary = {"test_accuracy": 0.9, "bytes_per_step": 100, "step_seconds": 0.1}
    summary |= {"density_asked": 0.7, "density_achieved": None}
    print_table(console, "title", {"sparse": SimpleNamespace(summary=summary)})
    assert "0.7         -    0.1000" in capsys.readouterr().out


def horovod_of(rank):
    """Return a stand-in of Horovod as on a rank of two."""
    made = mock.Mock(rank=lambda: rank, size=lambda: 2)
    made.DistributedOptimizer = lambda optimizer, **_: optimizer
    return made


def test_workers_begin_with_the_same_weights_and_drop_out_different_ones(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("horovod.torch", exc_type=ImportError)
    from recipes import torch_training

    args, weights, kept = options("--method", "none", monkeypatch=monkeypatch), [], []
    for rank in range(2):
        monkeypatch.setattr(torch_training, "hvd", horovod_of(rank))
        torch_training.begin(args)
        model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Dropout(0.5))
        torch_training.Training(args, model, 1)
        weights.append(model[0].weight.detach())
        kept.append(model[1](torch.ones(64)))
    assert torch.equal(*weights) and not torch.equal(*kept)


def test_workers_of_keras_drop_out_different_outputs(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("horovod.tensorflow.keras", exc_type=ImportError)
    from recipes import keras_training

    # TensorFlow refuses this once it is initialized.
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", lambda _: None)
    args, weights, kept = options("--method", "none", monkeypatch=monkeypatch), [], []
    for rank in range(2):
        monkeypatch.setattr(keras_training, "hvd", horovod_of(rank))
        keras_training.begin(args)
        layers = [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64)]
        model = tf.keras.Sequential([*layers, tf.keras.layers.Dropout(0.5)])
        keras_training.compile_model(args, model, 1)
        weights.append(model.layers[0].get_weights()[0])
        kept.append(tf.function(model)(tf.ones((1, 64)), training=True).numpy() == 0)
    assert (weights[0] == weights[1]).all() and not (kept[0] == kept[1]).all()


class Recorded:
    @classmethod
    def __getattr__(cls, name):
        return lambda params, **options: (name, options)


WARMUP = {"id": "exponential_warmup", "stage_steps": 7, "stages": 2}
DENSE = {"id": "dense_warmup", "warmup_steps": 35}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "ldte_bs,variant=paper --warmup-epochs 2",
            {"density": 0.001, "variant": "paper", "schedule": WARMUP},
        ),
        ("topk --warmup dense --density 0.01", {"density": 0.01, "schedule": DENSE}),
        ("topk,density=0.5 --warmup none", {"density": 0.5}),
        ("ldte_bs,density=0.5 --warmup dense", {"density": 0.5, "schedule": DENSE}),
        ("adacomp", {}),
        ("signsgd", {}),
        ("terngrad", {}),
        ("ef_sign --clip-norm 2", {"memory": {"id": "momentum_feedback", "clip_norm": 2.0}}),
        (
            "ef_sign --clip-norm 2 --optimizer adamw",
            {"memory": {"id": "adam_correction", "clip_norm": 2.0}},
        ),
        ("dgc --clip-norm 2 --warmup none", {"density": 0.001, "clip_norm": 2.0}),
    ],
)
def test_a_compressor_gets_what_the_options_say(arguments, expected, monkeypatch):
    from recipes.options import build_compression, is_handed_over

    args = options("--method", *arguments.split(), monkeypatch=monkeypatch)
    name, given = build_compression(args, 7, Recorded(), "params", "optimizer", None, None)
    assert name == arguments.split()[0].split(",")[0]
    is_handed = name not in ("signsgd", "terngrad")  # which have no residual
    assert given == {**({"optimizer": "optimizer"} if is_handed else {}), **expected}
    assert is_handed_over(args) == is_handed
