"""Advice on whether to compress, and how, by the predicted steps.

The advised step is never slower than those without compression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_sparse.autotune.costmodel.advice_sentence import sentence_of
from hvd_sparse.autotune.costmodel.candidate import Candidate
from hvd_sparse.autotune.costmodel.costs import Work
from hvd_sparse.autotune.costmodel.network import Network, Setting
from hvd_sparse.autotune.costmodel.planner import STRATEGIES
from hvd_sparse.autotune.costmodel.predict import Prediction, dense_step, sparse_step
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.autotune.costmodel.published import with_codec
from hvd_sparse.autotune.costmodel.simulation import divides, exchanges
from hvd_sparse.autotune.costmodel.volumes import density_of
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import CODECS, EXCHANGES

DENSITIES = (0.001, 0.01)
CODEC_IDS = ("index_value", "block16")
MARGIN = 1.05
"""Factor by which compression must be quicker to be advised: models err, and dense gradients need
no trust."""
AS_GOOD = 1.02
"""Factor up to which steps count as equally quick.  Of these the one that sends most is taken, so
that dense wins where fp16 saves next to nothing."""
BANDWIDTHS = (1e6, 1e12)
"""Range in which the crossover is searched for, bit/s."""


@dataclass(frozen=True)
class Advice:
    """The advice for one setting.

    Attributes
    ----------
    choice : "dense", "fp16" or "sparse"
    dense, fp16 : the steps without compression
    candidates : all candidates, the quickest first
    chosen : the candidate to take; None unless ``choice`` is "sparse"
    strategies : seconds of a step by strategy, of the chosen candidate or else of the quickest
    groups : names of the layers of each group of the same candidate, in the order of the backward
        pass
    crossover_bit_s : bandwidth below which the same candidate is quicker than the better of dense
        and fp16; 0 if it is quicker at none, infinity if at every; None where the network was
        measured and not described
    sentence : all of it in words
    """

    choice: str
    dense: Prediction
    fp16: Prediction
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    strategies: dict[str, float]
    groups: tuple[tuple[str, ...], ...]
    crossover_bit_s: float | None
    sentence: str

    @property
    def step_s(self) -> float:
        """Return the seconds of the advised step."""
        if self.chosen is not None:
            return self.chosen.prediction.step_s
        return (self.fp16 if self.choice == "fp16" else self.dense).step_s

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able; an infinite crossover is None."""
        crossover = self.crossover_bit_s
        return {
            "choice": self.choice,
            "step_s": self.step_s,
            "dense": self.dense.to_dict(),
            "fp16": self.fp16.to_dict(),
            "chosen": None if self.chosen is None else self.chosen.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "strategies": self.strategies,
            "groups": [list(group) for group in self.groups],
            "crossover_bit_s": None if crossover is None or math.isinf(crossover) else crossover,
            "sentence": self.sentence,
        }


def advise(
    profile: Profile,
    setting: Setting,
    *,
    method: str = "ldte_bs",
    densities: Sequence[Density] = DENSITIES,
    codecs: Sequence[str] = CODEC_IDS,
    exchange_ids: Sequence[str] | None = None,
    margin: float = MARGIN,
) -> Advice:
    """Predict every candidate, and advise one only if it beats dense and fp16 by ``margin``.

    Dense is advised unless fp16 is quicker by more than ``AS_GOOD``, as dense loses nothing.

    Parameters
    ----------
    profile : the model's layers
    setting : ranks and costs
    method : id of a selector that takes a density
    densities : densities that training is known to bear, each a number or by name; the model
        predicts time, not accuracy. Of one by name the mean over all entries is told
    codecs : ids, with their default options
    exchange_ids : by default those whose result rests on no assumption about the gradients: not
        ``shared_index``
    margin : 1 or more

    Returns
    -------
    Advice
        Its ``step_s`` is never above that of dense, nor above ``AS_GOOD`` times that of fp16.

    Raises
    ------
    InvalidOption
        If no exchange fits the codecs and the method, or ``margin`` is below 1.
    """
    if not margin >= 1:
        raise InvalidOption(f"margin is {margin!r}: a factor of 1 or more")
    for id in exchange_ids or ():
        EXCHANGES.get(id)  # raises UnknownName for an id that is none
    dense, fp16 = dense_step(profile, setting), dense_step(profile, setting, 2)
    configurations = _configurations(profile, setting, method, densities, codecs, exchange_ids)
    if not configurations:
        raise InvalidOption(
            f"no exchange and codec of those asked for can be joined with {method} here"
        )
    candidates = sorted(
        (_candidate(profile, configuration, setting) for configuration in configurations),
        key=lambda each: each.prediction.step_s,
    )
    better = min(dense.step_s, fp16.step_s)
    chosen = _choose(candidates, better / margin)
    # where none is advised, the quickest one says why not
    shown = chosen or candidates[0]
    configuration = configurations[
        [_key(c) for c in configurations].index((shown.density, shown.codec, shown.exchange))
    ]
    crossover = None
    if isinstance(setting.wire, Network):
        crossover = _crossover(profile, configuration, setting, setting.wire)
    uncompressed = "dense" if dense.step_s <= AS_GOOD * fp16.step_s else "fp16"
    choice = "sparse" if chosen else uncompressed
    sentence = sentence_of(method, chosen, candidates[0], dense, fp16, uncompressed, crossover)
    priced = _priced(configuration, setting)
    strategies = {
        name: sparse_step(profile, configuration, priced, strategy=strategy).step_s
        for name, strategy in STRATEGIES.items()
    }
    names = _groups(profile, shown)
    return Advice(
        choice, dense, fp16, tuple(candidates), chosen, strategies, names, crossover, sentence
    )


def _configurations(
    profile: Profile,
    setting: Setting,
    method: str,
    densities: Sequence[Density],
    codecs: Sequence[str],
    exchange_ids: Sequence[str] | None,
) -> list[Configuration]:
    placement = setting.placement
    per_node = placement.world_size // placement.node_count
    found = []
    for density in densities:
        for codec in codecs:
            for id, configuration in exchanges(
                density, codec, method, per_node, profile.specs
            ).items():
                exchange, selector = configuration.exchange, configuration.selector
                is_common = selector.has_shared_indices or selector.sums_statistics
                wanted = (
                    id in exchange_ids
                    if exchange_ids is not None
                    else is_common or not exchange.shares_indices
                )
                if wanted and not (exchange.sums_first and not divides(setting)):
                    found.append(configuration)
    return found


def _key(configuration: Configuration) -> tuple[float, str, str]:
    return density_of(configuration), configuration.codec.id, configuration.exchange.id


def _candidate(profile: Profile, configuration: Configuration, setting: Setting) -> Candidate:
    return Candidate(
        *_key(configuration), sparse_step(profile, configuration, _priced(configuration, setting))
    )


def _priced(configuration: Configuration, setting: Setting) -> Setting:
    """Return the setting with the costs of this codec."""
    work: Work = with_codec(setting.work, configuration.codec)
    return Setting(setting.placement, setting.wire, work)


def _choose(candidates: Sequence[Candidate], limit_s: float) -> Candidate | None:
    """Return the candidate to take; None if none is quick enough.

    Of those about as quick as the quickest it is the one with the highest density, then the most
    exact one.
    """
    possible = [
        each
        for each in candidates
        if each.prediction.step_s <= limit_s and not each.prediction.goes_dense
    ]
    if not possible:
        return None
    quick = [
        each
        for each in possible
        if each.prediction.step_s <= AS_GOOD * possible[0].prediction.step_s
    ]
    return max(
        quick, key=lambda e: (e.density, CODECS.create(e.codec).is_exact, e.exchange == "allgather")
    )


def _groups(profile: Profile, candidate: Candidate) -> tuple[tuple[str, ...], ...]:
    prediction = candidate.prediction
    layers = profile.layers if prediction.goes_dense else profile.compressed.layers
    names = [layer.name for layer in layers]
    return tuple(
        tuple(names[start:stop]) for start, stop in zip((0, *prediction.plan[:-1]), prediction.plan)
    )


def _crossover(
    profile: Profile, configuration: Configuration, setting: Setting, network: Network
) -> float:
    """Return the bandwidth in bit/s below which compression pays, by bisection of its logarithm.

    0 stands for none, infinity for every bandwidth.
    """

    def pays(bandwidth_bit_s: float) -> bool:
        wire = Network(**{**vars(network), "bandwidth_bit_s": bandwidth_bit_s})
        here = Setting(setting.placement, wire, setting.work)
        # without the margin: here both sides are predictions of one model at another bandwidth
        better = min(dense_step(profile, here).step_s, dense_step(profile, here, 2).step_s)
        return sparse_step(profile, configuration, _priced(configuration, here)).step_s < better

    # of the logarithm, as the range is six powers of ten
    low, high = map(math.log, BANDWIDTHS)
    if not pays(math.exp(low)):
        return 0.0
    if pays(math.exp(high)):
        return math.inf
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if pays(math.exp(middle)) else (low, middle)
    return math.exp(low)
