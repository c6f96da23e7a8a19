"""Compressors in ``hvd.elastic.TorchState(model=..., optimizer=..., compressor=compressor)``.

Without a handler, Horovod would pickle the compressor and give rank 0's to all ranks.
"""

from __future__ import annotations

from horovod.torch.elastic.state import StateHandler, get_handler_registry, set_handler_registry

from hvd_sparse.torch.compressor import TorchCompressor


class CompressorStateHandler(StateHandler):  # type: ignore[misc]
    """Commits and restores this rank's state, and redistributes it when the world has changed."""

    def __init__(self, compressor: TorchCompressor) -> None:
        super().__init__(compressor)
        self.save()

    def save(self) -> None:
        self.value.commit()

    def restore(self) -> None:
        self.value.go_back()

    def sync(self) -> None:
        # no commit, as Horovod's handler of the model makes none here
        self.value.rejoin()


def register() -> None:
    """Make the handler known to Horovod, once."""
    known = get_handler_registry()
    if all(kind is not TorchCompressor for kind, _ in known):
        set_handler_registry([(TorchCompressor, CompressorStateHandler), *known])
