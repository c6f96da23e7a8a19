"""Compressors without a framework: one with a numpy session, one that stores its options."""

import inspect

from worlds import normals, tensors

from hvd_sparse.frontend.auto import AutoMethod
from hvd_sparse.frontend.compressor import Compressor
from hvd_sparse.methods import Methods
from hvd_sparse.step.session import Session

SPECS = tensors((30, 4), (9,))


class NumpyCompressor(Compressor):
    def __init__(self, collective, configuration, specs=SPECS, average=True):
        super().__init__(configuration, "numpy")
        self.name = self._naming.take(specs)
        self.collective = collective
        self.session = Session(configuration, specs, collective, average=average)
        self.step = self.session.step

    def _place_in_world(self):
        return self.collective.rank, self.collective.world_size

    def train(self, steps):
        given = [normals(SPECS, self.collective.rank, step) for step in steps]
        return [self.session.reduce(gradients)["t0"].tobytes() for gradients in given]


class Made(Methods):
    """Named methods that return an object with the arguments that they got."""

    @classmethod
    def _create(cls, params, configuration, process_set, grad_scaler):
        made = cls()
        made.params, made.configuration, made.process_set = params, configuration, process_set
        made.taken = None
        return made

    @classmethod
    def _read_optimizer(cls, optimizer):
        return optimizer

    def take_over(self, optimizer):
        self.taken = optimizer

    def log_footprint(self):
        pass


class Taking(Compressor):
    taken = None

    def take_over(self, optimizer):
        self.taken = optimizer


class Auto(AutoMethod, Made):
    """Named methods and ``auto``, which return compressors."""

    @classmethod
    def _create(cls, params, configuration, process_set, grad_scaler, policy=None):
        return Taking(configuration, "numpy", policy)


def required(method):
    """Return the required options of a method, with values."""
    parameters = inspect.signature(getattr(Made, method)).parameters.values()
    return {p.name: 0.1 for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
