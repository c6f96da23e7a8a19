"""The base of the compressors of both frontends: a name, a state, a report."""

from __future__ import annotations

import gc
import hashlib
import itertools
import logging
import weakref
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hvd_sparse.collectives.topology import is_elastic
from hvd_sparse.configuration import DEVICE_WIRE, Configuration
from hvd_sparse.errors import InvalidOption, RankMismatch
from hvd_sparse.frontend.footprint import footprint
from hvd_sparse.memories._directions import DirectionState
from hvd_sparse.registry import configuration as describe_part
from hvd_sparse.state.state_check import (
    STATE_VERSION,
    IncompatibleKeys,
    differences_of,
    incompatible_keys,
)
from hvd_sparse.step.step import Step
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import ProcessSet, Report, State, Value
from hvd_sparse.version import __version__

logger = logging.getLogger("hvd_sparse")

_LIVE: weakref.WeakValueDictionary[str, Compressor] = weakref.WeakValueDictionary()
_MET: dict[str, list[object]] = {}
"""The compressors that have met in this world, by place and in that order."""
_NUMBERS: dict[str, dict[int, object]] = {}
"""The numbers of the compressors that were not closed, by place, and who has them."""


class Compressor:
    """Base of all frontends' compressors; compares and hashes by identity.

    Parameters
    ----------
    configuration : parts and options
    place : text that identifies process set and frontend in the handshake's name
    world_size : current number of ranks in the process set
    """

    step: Step
    has_device_wire = False
    """Its framework gives Horovod tensors of an accelerator."""
    is_called_alone = False
    """The framework calls a compressor in a world of one rank, too."""
    clips_all_gradients = False
    """It has all gradients of a step before it sends the first, if it is to clip them."""
    is_forewarned = False
    """It has been said what becomes of accuracy with the optimizer in use."""

    def __init__(self, configuration: Configuration, place: str, world_size: int) -> None:
        if world_size == 1 and not (self.is_called_alone or is_elastic()):
            say_alone()
        if configuration.wire == DEVICE_WIRE and not self.has_device_wire:
            raise InvalidOption(
                f"wire is {DEVICE_WIRE!r}, which hvd_sparse.torch alone has: leave wire out"
            )
        if configuration.clip_grad_norm is not None and not self.clips_all_gradients:
            raise InvalidOption(
                f"clip_grad_norm is {configuration.clip_grad_norm}, which PyTorch alone has, as "
                "graphs of TensorFlow send gradients one by one: bound each tensor's norm by the "
                "memory, as in memory={'id': 'momentum_correction', 'clip_norm': 1.0}"
            )
        self.configuration = configuration
        self.name = configuration.name or ""
        self._place, self._claim = place, object()
        self._number = _take_number(place, self._claim)

    def _meeting_place(self) -> str:
        """Return the name of a handshake that begins now: its number in this world, the same on
        every rank.

        It is numbered by the order of first gradients. It does not use names, because they depend
        on the model, whose differences the handshake must find; nor the order of creation, because
        other ranks would wait for a compressor that only one rank made. A second handshake means
        another world of an elastic run, where some ranks are new, so counting begins again.
        """
        met = _MET.setdefault(self._place, [])
        if self._claim in met:
            met.clear()
        met.append(self._claim)
        return f"hvd_sparse.handshake.{self._place}.{len(met) - 1}"

    def _take_name(self, specs: Sequence[TensorSpec]) -> None:
        """Settle the name that every collective bears; two live compressors must not be given one
        name.

        A name by default has the number of the compressor in it, by the order in which they are
        made: the same on all ranks. It becomes free when the compressor is closed, and only then,
        as ranks do not collect garbage at the same time.
        """
        self.name = self.configuration.name or f"{digest_of(specs)}{self._suffix()}"
        if _LIVE.get(self.name) not in (None, self):
            gc.collect()  # one that nothing refers to any more may still be there
        other = _LIVE.get(self.name)
        if other is not None and other is not self:
            raise InvalidOption(
                f"two compressors have the name {self.name!r}, which would mix up their "
                "collectives: give one of them name=..., or close() the one that is no longer "
                "needed"
            )
        _LIVE[self.name] = self

    def _suffix(self) -> str:
        """Return a suffix that distinguishes equal models; empty for the first of the global
        process set."""
        process_set = self._place.partition(".")[2]
        of_set = "" if process_set in ("", "0") else f".set{process_set}"
        return of_set + (f".{self._number}" if self._number else "")

    def stats(self) -> Report:
        """Return counts of everything sent so far, as JSON-able values.

        ``step.stats.Stats.report`` lists the entries.  With ``density="hiding"`` there is also
        "hiding": the largest ratio, "c_max", and whether the densities in "density_asked" are
        measured yet.  If densities follow the learning rate, there is "along_rate": the mean
        "density" asked for, and the "codec".
        """
        density, rule = (
            getattr(self.configuration.selector, "density", None),
            self.configuration.rule,
        )
        told = self.step.stats.report(density if rule is None else rule.mean)
        for key, figures in told["tensors"].items():
            figures["density_asked"] = density if rule is None else rule.table.get(key)
        if rule is not None and rule.c_max is not None:
            told["hiding"] = {"c_max": rule.c_max, "is_measured": rule.is_measured}
        if self.configuration.follows_rate:
            mean = density if rule is None else rule.mean
            told["along_rate"] = {"density": mean, "codec": self.configuration.codec.id}
        return {"name": self.name, "exchange": describe_part(self.step.exchange), **told}

    def footprint(self) -> Report:
        """Return the bytes of the state and of a step's messages, from shapes alone:
        ``frontend.footprint``."""
        return footprint(self.configuration, self.step.specs, self._size_of_world())

    def config(self) -> Report:
        """Return parts and options; ``Compression.from_config`` makes an equal compressor from
        them.

        Returns
        -------
        Report
            JSON-able.
        """
        return self.configuration.describe()

    def state_dict(self) -> Report:
        """Return this rank's state of every tensor, as plain values and copies of arrays.

        version, library : of this layout, and of hvd_sparse config, model : parts and options;
        shape and dtype of every tensor rank, world_size, reduction : owner, number of ranks, and
        whether gradients were averaged or summed tensors : by name, for tensors that had a step:
        completed steps, threshold, the selector's memo and the vector it selected from, the
        memory's arrays and numbers; the density, if it was measured
        """
        rule = self.configuration.rule
        measured = rule.table if rule is not None and rule.is_measured else {}
        states = self.step.transactions.settle_all()
        tensors = {}
        for position, state in sorted(states.items()):
            spec = self.step.specs[position]
            numbers = state.memory.numbers() if isinstance(state.memory, DirectionState) else {}
            tensors[spec.key] = {
                "steps": state.steps,
                "threshold": None if state.threshold is None else float(state.threshold),
                "memo": state.memo,
                "is_sparse": self.configuration.is_sparse(spec.shape, spec.numel),
                "selected_in": state.selected_in,
                "exchange_memo": state.exchange_memo,
                **({"density": measured[spec.key]} if spec.key in measured else {}),
                **({"numbers": numbers} if numbers else {}),
                "arrays": {name: array.copy() for name, array in state.memory.arrays().items()},
            }
        rank, world_size = self._place_in_world()
        return {
            "version": STATE_VERSION,
            "library": __version__,
            "config": self.config(),
            "model": {spec.key: f"{list(spec.shape)} {spec.dtype}" for spec in self.step.specs},
            "rank": rank,
            "world_size": world_size,
            "reduction": self.step.reduction,
            "tensors": tensors,
        }

    def _place_in_world(self) -> tuple[int, int]:
        """Rank and size, now."""
        raise NotImplementedError

    def _size_of_world(self) -> int:
        """Ranks in the process set, which this one need not be in."""
        return self._place_in_world()[1]

    def load_state_dict(self, state: State, strict: bool = True) -> IncompatibleKeys:
        """Load this rank's state.

        Parameters
        ----------
        state : this rank's ``state_dict()``
        strict : False loads only the tensors that both sides know, for added or removed parameters;
            the same on all ranks

        Returns
        -------
        IncompatibleKeys
            The tensors that only one side knows, in torch's form.

        Raises
        ------
        RankMismatch : it belongs to another model, configuration or world; the message lists the
            differences
        """
        kept = {spec.key: self.step.transactions.kept_of(spec) for spec in self.step.specs}
        place = self._place_in_world()
        differences = differences_of(
            state, self.configuration, self.step.specs, place, kept, strict=strict
        )
        if differences:
            raise RankMismatch("this state does not fit this compressor: " + "; ".join(differences))
        self.step.transactions.reset()
        self.step.applied.clear()
        self.step.reduction = state["reduction"]
        for position, spec in enumerate(self.step.specs):
            if spec.key in state["tensors"]:
                saved, tensor = (
                    state["tensors"][spec.key],
                    self.step.transactions.state_of(position),
                )
                tensor.memory.load(
                    {name: np.asarray(array) for name, array in saved["arrays"].items()}
                )
                if isinstance(tensor.memory, DirectionState):
                    tensor.memory.recall(saved.get("numbers", {}))
                tensor.restore(
                    saved["steps"],
                    saved["threshold"],
                    saved["memo"],
                    saved.get("exchange_memo"),
                    saved.get("selected_in"),
                )
        return incompatible_keys(state, self.step.specs)

    def close(self) -> None:
        """Release the name; do not use the compressor afterwards."""
        if _LIVE.get(self.name) is self:
            del _LIVE[self.name]
        if _NUMBERS[self._place].get(self._number) is self._claim:
            del _NUMBERS[self._place][self._number]

    def __reduce__(self) -> Value:
        raise InvalidOption(
            f"{type(self).__name__} cannot be pickled or copied: it belongs to its process and its "
            "model; save config() and "
            "state_dict(), and make another with Compression.from_config(params, config)"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.configuration}, collectives={self.name!r})"


def _take_number(place: str, claim: object) -> int:
    """Return the lowest number that no compressor has, and note whose it is now."""
    taken = _NUMBERS.setdefault(place, {})
    number = next(n for n in itertools.count() if n not in taken)
    taken[number] = claim
    return number


@lru_cache(maxsize=1)  # once a process
def say_alone() -> None:
    """A single process that waits for compression to show would wait in vain."""
    logger.warning(
        "world size 1: Horovod exchanges nothing and calls no compressor; start more ranks, for "
        "example horovodrun -np"
    )


def digest_of(specs: Sequence[TensorSpec]) -> str:
    """A short name made from the tensors' names and shapes."""
    text = "\n".join(f"{spec.key} {spec.shape} {spec.dtype}" for spec in specs)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def check_process_set(process_set: ProcessSet) -> None:
    """It is one of Horovod's, and registered with it."""
    if is_elastic() and getattr(process_set, "process_set_id", None):
        raise InvalidOption(
            f"process_set is {process_set!r} in an elastic run: when a worker dies, Horovod aborts "
            "the others while "
            "process sets are registered; leave process_set out, or run without --min-np"
        )
    if getattr(process_set, "process_set_id", None) is None:
        raise InvalidOption(
            f"process_set is {process_set!r}: give one that Horovod knows, by "
            "hvd.init(process_sets=[...]) or "
            "hvd.add_process_set, or leave it out for all ranks"
        )


def check_keys(keys: Sequence[str]) -> None:
    """Every tensor has a name, and its own."""
    seen: set[str] = set()
    for position, key in enumerate(keys):
        if not isinstance(key, str) or not key:
            raise InvalidOption(
                f"tensor number {position} has the name {key!r}: give every tensor a name, a text "
                "of its own"
            )
        if key in seen:
            raise InvalidOption(
                f"two tensors are called {key!r}: give every tensor a name of its own"
            )
        seen.add(key)
