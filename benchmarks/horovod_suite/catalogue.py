"""Which of Horovod's programs and tests are run, and how they are made short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.horovod_suite.rewriting import names_of_tests

SYNTHETIC = ("--batch-size", "2", "--num-iters", "1", "--num-batches-per-iter", "2")
WARM = ("--num-warmup-batches", "1")
NETWORK = ("--model", "MobileNetV2")
IMAGES = ("--epochs", "1", "--batch-size", "4", "--val-batch-size", "4", "--no-cuda")


@dataclass(frozen=True)
class Program:
    """One of Horovod's programs, or tests of one of its files.

    Attributes
    ----------
    path : below the checkout
    framework : "torch" or "tensorflow"
    arguments : of the program
    constants : whole numbers in it that are replaced by smaller ones
    elastic : whether Horovod's elastic launcher starts it
    tests : the names of the tests that are run of it; none for a program
    """

    path: str
    framework: str
    arguments: tuple[str, ...] = ()
    constants: Mapping[int, int] = field(default_factory=dict)
    elastic: bool = False
    tests: tuple[str, ...] = ()


KERAS_MNIST = {500: 16, 24: 2, 128: 16}
EXAMPLES = (
    Program("examples/pytorch/pytorch_mnist.py", "torch", ("--epochs", "2")),
    Program(
        "examples/pytorch/pytorch_synthetic_benchmark.py", "torch", (*SYNTHETIC, *WARM), {224: 32}
    ),
    Program("examples/pytorch/pytorch_imagenet_resnet50.py", "torch", IMAGES),
    Program("examples/tensorflow2/tensorflow2_mnist.py", "tensorflow", (), {10000: 40, 128: 16}),
    Program("examples/tensorflow2/tensorflow2_keras_mnist.py", "tensorflow", (), KERAS_MNIST),
    Program(
        "examples/tensorflow2/tensorflow2_synthetic_benchmark.py",
        "tensorflow",
        (*SYNTHETIC, *WARM, *NETWORK),
    ),
    Program(
        "examples/tensorflow2/tensorflow2_keras_synthetic_benchmark.py",
        "tensorflow",
        (*SYNTHETIC, *NETWORK),
        {10: 2},
    ),
    Program(
        "examples/elastic/pytorch/pytorch_mnist_elastic.py",
        "torch",
        ("--epochs", "2"),
        elastic=True,
    ),
    Program(
        "examples/elastic/pytorch/pytorch_synthetic_benchmark_elastic.py",
        "torch",
        (*SYNTHETIC, *WARM),
        {224: 32},
        elastic=True,
    ),
    Program(
        "examples/elastic/pytorch/pytorch_imagenet_resnet50_elastic.py",
        "torch",
        IMAGES,
        elastic=True,
    ),
    Program(
        "examples/elastic/tensorflow2/tensorflow2_mnist_elastic.py",
        "tensorflow",
        (),
        {100: 40, 128: 16},
        elastic=True,
    ),
    Program(
        "examples/elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py",
        "tensorflow",
        (),
        KERAS_MNIST,
        elastic=True,
    ),
    Program(
        "examples/elastic/tensorflow2/tensorflow2_synthetic_benchmark_elastic.py",
        "tensorflow",
        (*SYNTHETIC, *WARM, *NETWORK),
        elastic=True,
    ),
)

_ELASTIC = ("--logfile", "log", "--epochs", "2", "--batches-per-epoch", "4")
ELASTIC_TESTS = tuple(
    Program(f"test/integration/data/elastic_{name}_main.py", framework, _ELASTIC, elastic=True)
    for name, framework in (("torch", "torch"), ("tensorflow2", "tensorflow"))
)
"""The trainings that Horovod's elastic tests start."""

TEST_FILES = {
    "test/parallel/test_torch.py": "torch",
    "test/parallel/test_tensorflow2_keras.py": "tensorflow",
    "test/parallel/test_tensorflow2_keras_process_sets.py": "tensorflow",
    "test/parallel/test_tensorflow.py": "tensorflow",
    "test/parallel/test_tensorflow_process_sets.py": "tensorflow",
}


def catalogue(sources: Path) -> list[Program]:
    """Return all that is run of a checkout: examples, and tests of Horovod's optimizers and
    tapes."""
    tests = []
    for path, framework in TEST_FILES.items():
        names = names_of_tests((sources / path).read_text(encoding="utf-8"))
        tests.append(Program(path, framework, tests=tuple(names)))
    return [*EXAMPLES, *ELASTIC_TESTS, *tests]


def is_checkout(sources: Path) -> bool:
    """Tell whether a folder has what is run."""
    programs = [each.path for each in (*EXAMPLES, *ELASTIC_TESTS)]
    return all((sources / path).is_file() for path in (*TEST_FILES, *programs))
