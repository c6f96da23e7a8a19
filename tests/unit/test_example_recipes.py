"""What the examples of the papers read, and their networks and learning rates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from example_data import make_cifar10, make_image_folder, make_penn_treebank

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("recipes", "common"):
            del sys.modules[name]


def options(*arguments: str, recipe: str = "CIFAR10", monkeypatch=None):
    from recipes import options as module

    chosen = getattr(module, recipe)
    monkeypatch.setattr(sys, "argv", ["example", "--data", "d", *arguments])
    return module.read_arguments(module.make_parser("", chosen), chosen)


def test_cifar10_is_read_with_its_channels_last(tmp_path):
    from recipes import cifar10

    make_cifar10(tmp_path, images=4)
    (images, labels), (tested, _) = cifar10.load(tmp_path)
    assert images.shape == (20, 32, 32, 3) and images.dtype == np.uint8 and len(tested) == 4
    import pickle

    folder = tmp_path / "cifar-10-batches-py"
    second = pickle.loads((folder / "data_batch_2").read_bytes())
    red, green = second[b"data"][0][:1024], second[b"data"][0][1024:2048]
    assert images[4, :, :, 0].ravel().tolist() == red.tolist()
    assert images[4, :, :, 1].ravel().tolist() == green.tolist()
    assert labels[4:8].tolist() == second[b"labels"]
    assert np.array_equal(cifar10.load(folder)[0][0], images)


def test_cifar10_says_what_it_lacks(tmp_path):
    from recipes import cifar10

    make_cifar10(tmp_path, images=2)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(SystemExit, match=r"lacks data_batch_3: --data wants the unpacked CIFAR-10"):
        cifar10.load(tmp_path)


def test_penn_treebank_is_read_line_by_line_with_an_end(tmp_path):
    from recipes import penn_treebank

    make_penn_treebank(tmp_path, lines=3)
    ids, vocabulary = penn_treebank.load(tmp_path)
    assert vocabulary == 15 and len(ids["train"]) == 3 * 13 and len(ids["valid"]) == 13
    train = ids["train"].tolist()
    assert train[12] == train[25] == train[38] and train[1] == train[13]
    (tmp_path / "ptb.test.txt").write_text("word0 nobody knows")
    with pytest.raises(SystemExit, match=r"words that ptb\.train\.txt lacks, such as 'knows'"):
        penn_treebank.load(tmp_path)
    (tmp_path / "ptb.valid.txt").unlink()
    with pytest.raises(SystemExit, match=r"lacks ptb\.valid\.txt"):
        penn_treebank.load(tmp_path)


def test_windows_go_on_where_the_last_ended_and_ranks_have_columns_of_their_own():
    from recipes.penn_treebank import Windows

    ids = np.arange(100)  # 2 ranks x 2 columns of 25
    first, second = (list(Windows(ids, 2, 7, rank, 2)) for rank in range(2))
    assert len(first) == len(second) == 3
    assert [inputs[:, 0].tolist() for inputs, _ in first] == [[0, 25], [7, 32], [14, 39]]
    assert [inputs[:, 0].tolist() for inputs, _ in second] == [[50, 75], [57, 82], [64, 89]]
    for inputs, following in first + second:
        assert (following == inputs + 1).all() and inputs.shape == (2, 7)
    assert len(list(Windows(ids, 2, 7, 0, 2, steps=1))) == 1
    with pytest.raises(SystemExit, match="100 words are too few for 2 workers"):
        Windows(ids, 2, 25, 0, 2)


def test_a_folder_of_images_is_read_by_class(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL")
    from PIL import Image
    from recipes.image_folder import MEAN, STD, ImageFolder

    make_image_folder(tmp_path, images=3)
    tested = ImageFolder(tmp_path / "val", 21, augments=False)
    assert tested.classes == ["n01", "n02"] and len(tested) == 6
    assert [label for _, label in tested.files] == [0, 0, 0, 1, 1, 1]
    even = np.full((48, 60, 3), (10, 130, 250), np.uint8)
    even[:, :6] = even[:, -6:] = 99  # beyond the middle square of 42
    Image.fromarray(even).save(tmp_path / "val" / "n02" / "0.png")
    pixels, label = tested[3]
    assert label == 1 and pixels.shape == (3, 21, 21) and pixels.dtype == torch.float32
    expected = (np.array([10, 130, 250], np.float32) / 255 - MEAN) / STD
    assert np.allclose(pixels.numpy(), expected[:, None, None], atol=1e-6)

    torch.manual_seed(0)
    trained = ImageFolder(tmp_path / "train", 21, augments=True)
    once, again = trained[0][0], trained[0][0]
    assert once.shape == (3, 21, 21) and not torch.equal(once, again)
    with pytest.raises(SystemExit, match="is not there: --data wants train/CLASS/ and val/CLASS/"):
        ImageFolder(tmp_path / "nothing", 21, augments=False)
    with pytest.raises(SystemExit, match="holds no images"):
        ImageFolder(tmp_path, 21, augments=False)


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


class Recorded:
    """What a method is called with."""

    @classmethod
    def __getattr__(cls, name):
        return lambda params, **options: (name, options)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--method", "ldte_bs,variant=paper", "--warmup-epochs", "2"],
            {
                "density": 0.001,
                "variant": "paper",
                "schedule": {
                    "id": "exponential_warmup",
                    "value": 0.001,
                    "stage_steps": 7,
                    "stages": 2,
                },
            },
        ),
        (
            ["--method", "topk", "--warmup", "dense", "--density", "0.01"],
            {
                "density": 0.01,
                "schedule": {"id": "dense_warmup", "value": 0.01, "warmup_steps": 35},
            },
        ),
        (["--method", "topk,density=0.5", "--warmup", "none"], {"density": 0.5}),
        (["--method", "adacomp"], {}),
        (
            ["--method", "ef_sign", "--clip-norm", "2"],
            {"memory": {"id": "momentum_feedback", "clip_norm": 2.0}},
        ),
        (
            ["--method", "ef_sign", "--clip-norm", "2", "--optimizer", "adamw"],
            {"memory": {"id": "adam_correction", "clip_norm": 2.0}},
        ),
        (
            ["--method", "dgc", "--clip-norm", "2", "--warmup", "none"],
            {"density": 0.001, "clip_norm": 2.0},
        ),
    ],
)
def test_a_compressor_gets_what_the_options_say(arguments, expected, monkeypatch):
    from recipes.options import build_compression

    args = options(*arguments, monkeypatch=monkeypatch)
    name, given = build_compression(args, 7, Recorded(), "params", "optimizer", None, None)
    assert name == arguments[1].split(",")[0]
    assert given == {"optimizer": "optimizer", **expected}


def test_terngrad_leaves_the_optimizer_its_work(monkeypatch):
    from recipes.options import build_compression, is_handed_over

    args = options("--method", "terngrad", monkeypatch=monkeypatch)
    assert build_compression(args, 7, Recorded(), "p", "o", None, None) == ("terngrad", {})
    assert not is_handed_over(args)


def test_an_unknown_method_is_refused_on_the_command_line(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        options("--method", "ldtebs", monkeypatch=monkeypatch)
    assert "did you mean 'ldte_bs'?" in capsys.readouterr().err
