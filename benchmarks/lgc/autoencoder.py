"""The autoencoder of LGC, with the layers of the open implementation.

Encoder: convolutions 1, 64, 128, 256, 64 channels, three wide, every second place, LeakyReLU; then
64 to 4 channels: a quarter as many numbers as went in.  Decoder: transposed convolutions 4, 32, 64,
128, 32, and 33 to 1 channels, of which the last is the innovation: the few largest values as they
are.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

STRIDES = 16
"""Vectors are filled up with zeros to a multiple of it."""


class Autoencoder(nn.Module):
    """Encoder and decoder of vectors, float32 [count, 1, length]; the length a multiple of 16."""

    def __init__(self) -> None:
        super().__init__()
        down, up = (1, 64, 128, 256, 64), (4, 32, 64, 128, 32)
        self.encoder, self.decoder = nn.Sequential(), nn.Sequential()
        for before, after in pairwise(down):
            self.encoder.append(nn.Conv1d(before, after, 3, stride=2, padding=1))
            self.encoder.append(nn.LeakyReLU())
        self.encoder.append(nn.Conv1d(down[-1], up[0], 1))
        for before, after in pairwise(up):
            layer = nn.ConvTranspose1d(before, after, 3, stride=2, padding=1, output_padding=1)
            self.decoder.append(layer)
            self.decoder.append(nn.LeakyReLU())
        self.last = nn.Conv1d(up[-1] + 1, 1, 1)

    def decode(self, code: torch.Tensor, innovation: torch.Tensor) -> torch.Tensor:
        """Return the vectors of codes.

        Parameters
        ----------
        code : float32 [count, 4, length / 16]
        innovation : float32 [count, 1, length], zero but for the values sent as they are
        """
        found: torch.Tensor = self.last(torch.cat([self.decoder(code), innovation], 1))
        return found


def padded(vectors: torch.Tensor) -> torch.Tensor:
    """Return float32 [count, n] as [count, 1, length]."""
    return functional.pad(vectors, (0, -vectors.shape[1] % STRIDES)).unsqueeze(1)


def largest_of(vectors: torch.Tensor, count: int) -> torch.Tensor:
    """Return the vectors with all but their ``count`` largest entries zero."""
    kept = vectors.abs().topk(count, dim=-1).indices
    return torch.zeros_like(vectors).scatter(-1, kept, vectors.gather(-1, kept))


class Learner:
    """An autoencoder, and its training on the vectors of a run's steps.

    Parameters
    ----------
    innovations : entries that are sent as they are
    rate : of Adam; the open implementation's SGD at 0.001 is slower to learn
    """

    def __init__(self, innovations: int, rate: float = 1e-3) -> None:
        self.network, self._innovations = Autoencoder(), innovations
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=rate)

    def learn(self, vectors: torch.Tensor) -> None:
        """Train on the vectors of all workers at one step, and on their mean."""
        given = padded(torch.cat([vectors, vectors.mean(0, keepdim=True)]) / scale_of(vectors))
        codes = self.network.encoder(given)
        back = self.network.decode(codes, largest_of(given, self._innovations))
        loss = functional.mse_loss(back, given)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    @torch.no_grad()
    def encode(self, vector: torch.Tensor, scale: float) -> torch.Tensor:
        """Return a worker's code, float32 [1, 4, length / 16]."""
        code: torch.Tensor = self.network.encoder(padded(vector[None] / scale))
        return code

    @torch.no_grad()
    def decode(self, code: torch.Tensor, mean: torch.Tensor, scale: float) -> torch.Tensor:
        """Return the vector of the workers' mean code.

        Parameters
        ----------
        code : mean of all workers' codes
        mean : of their vectors, of which the innovation is taken
        scale : as the workers encoded with it
        """
        innovation = largest_of(padded(mean[None] / scale), self._innovations)
        found = self.network.decode(code, innovation)[0, 0, : mean.numel()] * scale
        return found


def scale_of(vectors: torch.Tensor) -> float:
    """Return the root of the mean square, by which vectors are divided: codes are learned at one
    size."""
    return max(float(vectors.square().mean().sqrt()), 1e-30)
