"""Load CIFAR-10 from its Python files, and make batches of its images."""

import pickle

import numpy as np

MEAN = np.array([0.491, 0.482, 0.447], np.float32)
STD = np.array([0.247, 0.243, 0.262], np.float32)
TRAIN, TEST = [f"data_batch_{number}" for number in range(1, 6)], ["test_batch"]
SIZE, MARGIN = 32, 4


def load(folder):
    """Return (train images, train labels), (test images, test labels): uint8 [count, 32, 32, 3] and
    int64 [count].

    folder : contains ``cifar-10-batches-py``, or is this folder itself
    """
    inside = folder / "cifar-10-batches-py"
    folder = inside if inside.is_dir() else folder
    missing = [name for name in TRAIN + TEST if not (folder / name).is_file()]
    if missing:
        raise SystemExit(
            f"{folder} lacks {', '.join(missing)}: --data wants the unpacked CIFAR-10 for Python, "
            "cifar-10-python.tar.gz"
        )
    return _read(folder, TRAIN), _read(folder, TEST)


def _read(folder, names):
    images, labels = [], []
    for name in names:
        with open(folder / name, "rb") as file:
            batch = pickle.load(file, encoding="bytes")
        images.append(np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, SIZE, SIZE))
        labels.append(np.asarray(batch[b"labels"], np.int64))
    return np.concatenate(images).transpose(0, 2, 3, 1), np.concatenate(labels)


def normalise(images):
    """Return float32 images of mean about 0 and standard deviation about 1 in every channel."""
    return (images.astype(np.float32) / 255 - MEAN) / STD


class Batches:
    """Batches of a rank's images: in a new order in every epoch, shifted, mirrored and normalised.

    Parameters
    ----------
    images, labels : images and labels of this rank
    size : number of images of a batch; an epoch does not use images that fill no whole batch
    steps : largest number of batches of an epoch; None for all batches
    seed : seed of the random order, shifts and mirroring
    """

    def __init__(self, images, labels, size, steps, seed):
        if len(images) < size:
            raise SystemExit(f"{len(images)} images a worker are less than a batch of {size}")
        self.images, self.labels, self.size = images, labels, size
        self.rng = np.random.default_rng(seed)
        self.steps = min(len(images) // size, steps or len(images))

    def __len__(self):
        return self.steps

    def __iter__(self):
        order = self.rng.permutation(len(self.images))
        for start in range(0, self.steps * self.size, self.size):
            chosen = order[start : start + self.size]
            yield normalise(self.shift_and_mirror(self.images[chosen])), self.labels[chosen]

    def shift_and_mirror(self, images):
        """Return every image shifted at random by up to ``MARGIN`` pixels, half of them mirrored.

        Pixels from outside of an image are black.
        """
        margins = ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0))
        wide = np.pad(images, margins)
        corners = self.rng.integers(0, 2 * MARGIN + 1, (len(images), 2))
        is_mirrored = self.rng.random(len(images)) < 0.5
        out = np.empty_like(images)
        for number, (top, left) in enumerate(corners):
            image = wide[number, top : top + SIZE, left : left + SIZE]
            out[number] = image[:, ::-1] if is_mirrored[number] else image
        return out


class InOrder:
    """Batches of all test images, normalised, in their order, without shifts and mirroring."""

    def __init__(self, images, labels, size=500):
        self.images, self.labels, self.size = images, labels, size

    def __iter__(self):
        for start in range(0, len(self.images), self.size):
            chosen = slice(start, start + self.size)
            yield normalise(self.images[chosen]), self.labels[chosen]
