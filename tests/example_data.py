"""Creates small files in the formats of CIFAR-10's batches, image folders, and PTB's texts."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

CLASSES = 10


def make_cifar10(folder: Path, images: int = 16) -> None:
    inside = folder / "cifar-10-batches-py"
    inside.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        labels = rng.integers(0, CLASSES, images)
        pixels = rng.integers(0, 25, (images, 3072)) + 23 * labels[:, None]
        batch = {b"data": pixels.astype(np.uint8), b"labels": labels.tolist()}
        (inside / name).write_bytes(pickle.dumps(batch, protocol=2))


def make_image_folder(folder: Path) -> None:
    """Write folders train and val with two classes of images: one in JPEG, one in PNG."""
    from PIL import Image

    rng = np.random.default_rng(1)
    for part in ("train", "val"):
        for name, ending, mean in (("n01", ".JPEG", 60), ("n02", ".png", 190)):
            (folder / part / name).mkdir(parents=True)
            for number in range(8):
                pixels = rng.integers(mean - 40, mean + 40, (48, 60, 3), np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}{ending}")


def make_penn_treebank(folder: Path, lines: int = 120) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"word{number}" for number in range(20)]
    for part, count in (("train", lines), ("valid", lines // 3), ("test", lines // 3)):
        text = "".join(
            " " + " ".join(words[(line + number) % 20] for number in range(12)) + " \n"
            for line in range(count)
        )
        (folder / f"ptb.{part}.txt").write_text(text)
