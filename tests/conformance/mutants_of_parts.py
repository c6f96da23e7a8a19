"""Memories, codecs and exchanges with deliberate faults."""

import numpy as np

from hvd_sparse.codecs.bitmap import Bitmap
from hvd_sparse.codecs.block16 import Block16
from hvd_sparse.codecs.golomb import Golomb
from hvd_sparse.codecs.index_value import IndexValue
from hvd_sparse.codecs.sign_mean import SignMean
from hvd_sparse.exchanges.allgather import AllGatherExchange
from hvd_sparse.exchanges.gtopk import GTopK
from hvd_sparse.exchanges.oktopk import OkTopK
from hvd_sparse.exchanges.shared_index import SharedIndex
from hvd_sparse.memories.adam_correction import AdamCorrection, AdamCorrectionState
from hvd_sparse.memories.contract import Accumulated, ResidualState
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.momentum_correction import MomentumCorrection, MomentumCorrectionState
from hvd_sparse.types import Selection


class Memory(ErrorFeedback):
    state = ResidualState

    def create(self, spec, *, rollback):
        return self.state(spec, rollback)


class NotCleared(ResidualState):
    def update(self, sent, is_exact, kernels, is_taken=False):
        pass


class AllCleared(ResidualState):
    def update(self, sent, is_exact, kernels, is_taken=False):
        self.residual.new[:] = 0


class Subtracted(ResidualState):
    def compensate(self, gradient, kernels, world_size=1, aim=None):
        return super().compensate(-gradient, kernels, world_size, aim)


class RoundingDropped(ResidualState):
    def update(self, sent, is_exact, kernels, is_taken=False):
        super().update(sent, True, kernels)


class NeverBack(ResidualState):
    def roll_back(self):
        self.residual.commit()


def remembering(state):
    return type("Broken", (Memory,), {"state": state})()


class NotMasked(MomentumCorrectionState):
    def update(self, sent, is_exact, kernels, is_taken=False):
        velocity = self.velocity.new[sent.indices]
        super().update(sent, is_exact, kernels)
        self.velocity.new[sent.indices] = velocity


class AlwaysMasked(MomentumCorrectionState):
    def update(self, sent, is_exact, kernels, is_taken=False):
        super().update(sent, is_exact, kernels)
        kernels.clear(self.velocity.new, sent.indices)


class Unmasking(MomentumCorrection):
    def create(self, spec, *, rollback):
        return NotMasked(spec, self, rollback)


class Overmasking(MomentumCorrection):
    def create(self, spec, *, rollback):
        return AlwaysMasked(spec, self, rollback)


class ForgetsAtRest(AdamCorrectionState):
    def update(self, sent, is_exact, kernels, is_taken=False):
        self._is_held = False
        super().update(sent, is_exact, kernels, is_taken)


class SendsWithoutRate(AdamCorrectionState):
    def _hold(self, direction, kernels):
        self._is_held = False
        self.residual.new[:] = self.residual.old
        return Accumulated(self.residual.new, kernels.moments(self.residual.new))


class SquareStays(AdamCorrectionState):
    def roll_back(self):
        super().roll_back()
        self.square.commit()


class Adam(AdamCorrection):
    def create(self, spec, *, rollback):
        return self.state(spec, self, rollback)


def adapting(state):
    return type("Broken", (Adam,), {"state": state})()


class InPlace(AdamCorrectionState):
    def finish(self, reduced, parameter, is_compressed, kernels):
        if is_compressed:
            reduced += parameter
            return reduced
        return super().finish(reduced, parameter, is_compressed, kernels)


BROKEN_MEMORIES = {
    "finished in place": adapting(InPlace),
    "cleared at a rate of 0": adapting(ForgetsAtRest),
    "sent at a rate of 0": adapting(SendsWithoutRate),
    "second moment not rolled back": adapting(SquareStays),
    "residual not cleared at what was sent": remembering(NotCleared),
    "whole residual cleared": remembering(AllCleared),
    "gradient minus residual": remembering(Subtracted),
    "rounding dropped": remembering(RoundingDropped),
    "never rolled back": remembering(NeverBack),
    "momentum not masked": Unmasking(),
    "momentum masked where it should not be": Overmasking(masking=False),
}


class DropsLast(IndexValue):
    def encode(self, selection):
        return super().encode(
            Selection(selection.indices[:-1], selection.values[:-1], selection.numel)
        )


class Halves(IndexValue):
    def encode(self, selection):
        return super().encode(Selection(selection.indices, selection.values * 0.5, selection.numel))


class Unsigned(Block16):
    def encode(self, selection):
        return super().encode(
            Selection(selection.indices, np.abs(selection.values), selection.numel)
        )


class Doubles(SignMean):
    def magnitude(self, magnitudes):
        return 2 * super().magnitude(magnitudes)


class Understates(Bitmap):
    def body_bytes(self, count, numel, value_bytes=4):
        return super().body_bytes(count, numel, value_bytes) - 1


class NextDoor(Golomb):
    def decode(self, buffer):
        selection = super().decode(buffer)
        return Selection(selection.indices + np.uint32(1), selection.values, selection.numel)


BROKEN_CODECS = {
    "last entry dropped": DropsLast(),
    "values halved": Halves(),
    "signs forgotten": Unsigned(),
    "another magnitude at every turn": Doubles(),
    "fewer bytes announced than written": Understates(),
    "indices one too high": NextDoor(),
}


class AnyOrder(AllGatherExchange):
    def run(self, context):
        arrivals = yield from super().run(context)
        rank = context.rank
        return {
            p: arrival._replace(parts=arrival.parts[rank:] + arrival.parts[:rank])
            for p, arrival in arrivals.items()
        }


class Overdrawing(OkTopK):
    def run(self, context):
        arrivals = yield from super().run(context)
        return {
            p: arrival._replace(left=context.members[p].selection)
            for p, arrival in arrivals.items()
        }


class Pretending(GTopK):
    @property
    def conserves(self):
        return True


class Unsettled(SharedIndex):
    def run(self, context):
        arrivals = yield from super().run(context)
        return {p: arrival._replace(left=None) for p, arrival in arrivals.items()}


BROKEN_EXCHANGES = {
    "sums in another order on every rank": AnyOrder(),
    "all that was offered taken for sent": Overdrawing(least_entries=1),
    "cut on the way and forgotten": Pretending(conserving=False),
    "sent and kept back": Unsettled(),
}
