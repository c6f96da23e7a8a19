"""Faults of selectors, memories, codecs and exchanges: for each a part, a method of its or another
function that it uses, and a change of this function."""

import numpy as np
from conformance import changes

from hvd_sparse.kernels import reference
from hvd_sparse.registry import CODECS, EXCHANGES, MEMORIES, SELECTORS
from hvd_sparse.types import Selection


def changed(part, where, change):
    own = f"{type(part).__module__}.{type(part).__name__}.{where}"
    return part, f"hvd_sparse.{where}" if "." in where else own, change


def text(part, where, old, new):
    return changed(part, where, changes.text(old, new))


def instead(part, where, other):
    return changed(part, where, changes.instead(other))


def spoilt(spoil):
    """Return a fault of top-k that makes another selection of the right one."""

    def other(found, _, x, __):
        return found._replace(selection=spoil(found.selection, x))

    return changed(TOPK, "find", changes.result(other))


def picked(x, indices):
    return Selection(np.asarray(indices, np.uint32), x[indices], x.size)


def from_behind(s, x):
    mirrored = reference.take_largest(x[::-1], s.count).indices.astype(int)
    return picked(x, np.sort(x.size - 1 - mirrored))


def nothing(*_):
    """Stand for a function that checks or narrows something."""


def select(id, **options):
    return SELECTORS.create(id, **{"density": 0.1, **options})


TOPK, LDTE_BS, BISECTION = select("topk"), select("ldte_bs"), select("ldte_bs", search="bisection")
FEEDBACK, ADAM = MEMORIES.create("error_feedback"), MEMORIES.create("adam_correction")
RESIDUAL, DIRECTION = "memories.contract.ResidualState", "memories._directions.DirectionState"
MOMENTUM = MEMORIES.create("momentum_correction")
UNMASKED = MEMORIES.create("momentum_correction", masking=False)
VELOCITY = "memories.momentum_correction.MomentumCorrectionState.update"
PLAIN, SIGN_INDEX = CODECS.create("index_value"), CODECS.create("sign_index")
GATHER, SHARED = EXCHANGES.create("allgather"), EXCHANGES.create("shared_index")
COUNT, SEARCH = "count = self.count(accumulated.size)", "found = search_threshold("
CLEARED = "self.residual.new[sent.indices] = 0.0"
MASKED = "self.velocity.new[sent.indices] = 0.0"

OF_SELECTORS = {
    "last entry dropped": spoilt(lambda s, x: Selection(s.indices[:-1], s.values[:-1], s.numel)),
    "unsorted": spoilt(lambda s, x: Selection(s.indices[::-1], s.values[::-1], s.numel)),
    "magnitudes for values": spoilt(lambda s, x: Selection(s.indices, abs(s.values), s.numel)),
    "always the first k": spoilt(lambda s, x: picked(x, np.flatnonzero(x)[: s.count])),
    "ties to the higher index": spoilt(from_behind),
    "writes to its input": spoilt(lambda s, x: x.sort() or s),
    "estimate not corrected": text(
        LDTE_BS,
        "find",
        SEARCH,
        f"return Found(kernels.take_at_least(accumulated, first), first, 1)\n    {SEARCH}",
    ),
    "bisection: bracket not narrowed": instead(
        BISECTION, "selectors._search.Bracket.narrow", nothing
    ),
    "sampled threshold without repair": text(
        select("dgc_sampled"),
        "find",
        "passes = 0\n",
        "return Found(context.kernels.take_at_least(accumulated, threshold), threshold)\n",
    ),
    "a reused threshold without a limit": text(
        select("redsync_search"), "find", "2 * wanted", "10**9"
    ),
}
OF_LIMITS = {
    "limit on passes forgotten": text(
        select("ldte_bs", search="bisection", max_passes=3),
        "selectors.ldte_bs.search_threshold",
        "len(widths) <= max_passes and ",
        "",
    )
}
OF_PASSES = {
    "an extra counting pass": text(
        LDTE_BS, "find", COUNT, f"{COUNT}\n    kernels.count_and_take(accumulated, 1.0, 0)"
    ),
    "a second pass for the moments": text(
        TOPK, "find", COUNT, f"{COUNT}\n    kernels.moments(accumulated)"
    ),
    "a pass that takes entries and throws them away": text(
        TOPK, "find", COUNT, f"{COUNT}\n    kernels.take_at_least(accumulated, 1.0)"
    ),
}
OF_STANDSTILLS = {
    f"{id}: goes on where counts stand still": instead(
        select(id, density=0.001), "selectors._search.STANDSTILLS", 99
    )
    for id in ("ldte_bs", "topk")
}
OF_MEMORIES = {
    "finished in place": text(
        ADAM, f"{DIRECTION}.finish", "return reduced", "return np.add(reduced, 1, out=reduced)"
    ),
    "cleared at a rate of 0": text(
        ADAM, f"{DIRECTION}.update", "if not self._is_held:", "if True:"
    ),
    "sent at a rate of 0": text(ADAM, f"{DIRECTION}.prepare", "self.rate == 0", "False"),
    "second moment not rolled back": text(
        ADAM, f"{DIRECTION}.roll_back", "self._written =", "self._written = self.square.commit() or"
    ),
    "steps of sent entries not rolled back": text(
        MEMORIES.create("momentum_feedback"),
        "memories.momentum_feedback.MomentumFeedbackState.update",
        "self._just_sent =",
        "self._sent_in[sent.indices], self._just_sent = self.step,",
    ),
    "residual not cleared at what was sent": text(FEEDBACK, f"{RESIDUAL}.update", CLEARED, "pass"),
    "whole residual cleared": text(
        FEEDBACK, f"{RESIDUAL}.update", CLEARED, "self.residual.new[:] = 0"
    ),
    "gradient minus residual": text(FEEDBACK, f"{RESIDUAL}.prepare", "(gradient,", "(-gradient,"),
    "never rolled back": text(
        FEEDBACK, f"{RESIDUAL}.roll_back", "_sent = self._nothing", "residual.commit()"
    ),
    "momentum not masked": text(MOMENTUM, VELOCITY, MASKED, "pass"),
    "momentum masked where it should not be": text(UNMASKED, VELOCITY, "if masks:", "if True:"),
}
OF_CODECS = {
    "last entry dropped": text(
        PLAIN,
        "encode",
        "indices.size, [indices, values]",
        "indices[:-1].size, [indices[:-1], values[:-1]]",
    ),
    "values halved": text(PLAIN, "encode", "selection.values", "selection.values / 2"),
    "signs forgotten": text(
        CODECS.create("block16"), "encode", "(selection.values,", "(abs(selection.values),"
    ),
    "another magnitude at every turn": text(
        CODECS.create("sign_mean"), "codecs.contract._mean", "return min(", "return 2 * min("
    ),
    "fewer bytes announced than written": text(
        CODECS.create("bitmap"), "body_bytes", "return ", "return -1 + "
    ),
    "checksum not looked at": instead(PLAIN, "wire.frame.crc32", lambda *_: 0),
}
OF_READERS = {
    "NaN let in": instead(
        CODECS.create("block16", values="float16"),
        "codecs._values.half_values",
        lambda codes: codes.view("f2").astype("f4"),
    ),
    "padding let in": instead(
        CODECS.create("bitmap"),
        "codecs._bits.unpack",
        lambda packed, _, count: np.unpackbits(packed, bitorder="little")[:count],
    ),
    "any magnitude let in": text(SIGN_INDEX, "decode", "need(is_ours,", "need(True,"),
    "any length let in": instead(SIGN_INDEX, "codecs.sign_index.need", nothing),
    "any order let in": instead(PLAIN, "codecs.index_value.need_ascending", nothing),
}
OF_EXCHANGES = {
    "sums in another order on every rank": text(
        GATHER, "run", "tuple(parts)", "(*parts[context.rank :], *parts[: context.rank])"
    ),
    "all that was offered taken for sent": text(
        EXCHANGES.create("oktopk", least_entries=1),
        "exchanges.oktopk._Plan.finish",
        "self._member.selection.within(applied.indices)",
        "self._member.selection",
    ),
    "cut on the way and forgotten": text(
        EXCHANGES.create("gtopk"), "exchanges.gtopk._Branch.finish", "if conserving", "if False"
    ),
    "sent and kept back": text(
        SHARED, "exchanges.shared_index._arrivals", "),), left)", "),), None)"
    ),
}
OF_RANGES = {
    "receiver: not looked at": instead(GATHER, "step.receiver._check_range", nothing),
    **{
        f"{id}: not looked at": instead(
            EXCHANGES.create(id, **options), f"exchanges.{id}.is_finite", lambda *_: True
        )
        for id, options in (("gtopk", {}), ("oktopk", {}), ("hierarchical", {"ranks_per_node": 5}))
    },
}
OF_REPLAYS = {
    "message: step not looked at": text(
        GATHER, "exchanges.context.ExchangeContext.read", "raise RankMismatch(", "repr("
    ),
    "carrier: step not looked at": instead(
        GATHER, "wire.carrier.CarrierLayout._refuse_step", nothing
    ),
    "sum: step not looked at": instead(SHARED, "exchanges.shared_index._check_step", nothing),
}
