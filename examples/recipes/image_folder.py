"""A PyTorch data set that reads ImageNet by Pillow, from a folder for each class."""

import numpy as np
import torch

try:
    from PIL import Image
except ImportError:
    raise SystemExit("Pillow decodes the images: pip install 'hvd-sparse[examples]'") from None

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
ENDINGS = {".jpeg", ".jpg", ".png"}
SHARE = 0.875  # side of the square of a test, as a fraction of the shorter side
TRIES = 10


class ImageFolder(torch.utils.data.Dataset):
    """Images of ``folder/CLASS/*``, as float32 [3, size, size], with the class's number.

    Parameters
    ----------
    folder : contains a folder for every class
    size : width and height of the returned images, in pixels
    augments : if true, take a random part of every image, and mirror half of them; otherwise take
        the middle
    """

    def __init__(self, folder, size, augments):
        if not folder.is_dir():
            raise SystemExit(f"{folder} is not there: --data wants train/CLASS/ and val/CLASS/")
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.files = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in ENDINGS
        ]
        if not self.files:
            raise SystemExit(f"{folder} holds no images: it wants CLASS/*.jpeg (or .jpg, .png)")
        self.size, self.augments = size, augments

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        path, label = self.files[number]
        with Image.open(path) as file:
            image = file.convert("RGB")
        image = self._random_part(image) if self.augments else self._middle(image)
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), label

    def _random_part(self, image):
        """Return 8 to 100 % of the area, with an aspect ratio of 3:4 to 4:3, scaled to a square."""
        width, height = image.size
        for _ in range(TRIES):
            area = width * height * _uniform(0.08, 1.0)
            ratio = np.exp(_uniform(np.log(3 / 4), np.log(4 / 3)))
            wide, high = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < wide <= width and 0 < high <= height:
                left, top = round(_uniform(0, width - wide)), round(_uniform(0, height - high))
                part = (left, top, left + wide, top + high)
                break
        else:
            part = (0, 0, width, height)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=part)
        is_mirrored = _uniform(0, 1) < 0.5
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_mirrored else image

    def _middle(self, image):
        """Return the square in the middle, scaled to ``size``."""
        side = min(image.size) * SHARE
        left, top = (image.size[0] - side) / 2, (image.size[1] - side) / 2
        box = (left, top, left + side, top + side)
        return image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)


def _uniform(low, high):
    """Draw from torch's generator, which a loader seeds differently in each of its processes."""
    return low + (high - low) * torch.rand(()).item()
