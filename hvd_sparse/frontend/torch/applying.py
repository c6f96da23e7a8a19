"""Optimizers given as ``optimizer=``: they apply updates that the compressor's memory computes."""

from __future__ import annotations

import logging
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.torch.optimizer import (
    OF_EVERY_GROUP,
    OF_SCHEDULERS,
    STEPS,
    is_decoupled,
    is_muon,
    refuse_options,
    settings_of,
    unhooked,
)
from hvd_sparse.frontend.torch.results import SPARSE_REMEDY
from hvd_sparse.types import Optimizer, Option, Settings, Value

logger = logging.getLogger("hvd_sparse")

MOMENTS = {
    "momentum_buffer": "momentum",
    "exp_avg": "mean",
    "exp_avg_sq": "square",
    "max_exp_avg_sq": "largest",
}
"""Maps the name of a moment in an optimizer's state to the name of the same array in a memory."""
PRODUCT = "mu_product"
"""Key in NAdam's state: the product of the momentum coefficients of all steps so far."""


class KeepingGroups:
    """Mixin for the user's optimizer, from which Horovod makes its own optimizer. Both optimizers
    share the dictionaries of the parameter groups, to which the user's schedulers write. torch's
    ``load_state_dict`` would give Horovod's optimizer new dictionaries, so that schedulers would no
    longer have an effect. Here ``load_state_dict`` changes only the contents of dictionaries."""

    hvd_sparse_base: type[torch.optim.Optimizer]
    param_groups: list[Settings]

    def __init__(self, params: Any, *others: Any, **options: Any) -> None:
        # Horovod passes the groups of the user's optimizer. Muon's reference implementation refuses
        # the entries that schedulers have added to them.
        groups = list(params)
        added = [
            {name: group.pop(name) for name in OF_EVERY_GROUP & {*group} - {"params"}}
            for group in groups
        ]
        super().__init__(groups, *others, **options)  # type: ignore[call-arg]
        for group, entries in zip(groups, added):
            group.update(entries)

    def load_state_dict(self, state_dict: Settings) -> None:
        groups = self.param_groups
        super().load_state_dict(state_dict)  # type: ignore[misc]
        for group, loaded in zip(groups, self.param_groups):
            group.clear()
            group.update(loaded)
        self.param_groups = groups

    def __reduce__(self) -> Value:
        """Pickle and copy the object as an optimizer of the original class."""
        return object.__new__, (self.hvd_sparse_base,), self.__getstate__()  # type: ignore

    @classmethod
    def mix_into(cls, optimizer: torch.optim.Optimizer, **members: Any) -> None:
        """Change the optimizer's class to one with this mixin and the class attributes ``members``.
        The object stays the same, because the user's schedulers and scalers refer to it."""
        base = getattr(optimizer, "hvd_sparse_base", type(optimizer))
        members = {"hvd_sparse_base": base, "__module__": base.__module__, **members}
        optimizer.__class__ = type(base.__name__, (cls, base), members)


class Applying(KeepingGroups):
    """Mixin for an optimizer that was given as ``optimizer=``. Its ``step`` subtracts the learning
    rate times the compressor's result from each compressed parameter, and updates the other
    parameters as the original class does. Hooks and schedulers work as before."""

    hvd_sparse_compressor: Any
    defaults: Settings
    state: Any

    _opt_called: bool

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "hvd_sparse_compressor" not in vars(cls):
            cls.hvd_sparse_compressor.derived(cls)

    @torch._disable_dynamo  # torch.compile(optimizer.step) cannot trace the compressor
    @torch.no_grad()
    def step(self, closure: Value = None) -> Value:
        compressor = self.hvd_sparse_compressor
        if compressor._is_closed:  # the optimizer would apply gradients without its moments
            raise InvalidOption(
                f"the {type(self).__name__} was given to the compressor {compressor.name!r} as "
                "optimizer=, and that is closed: make another optimizer, and load "
                "optimizer.state_dict() into it"
            )
        # Like torch's own optimizers, record gradients for the closure alone.
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._opt_called = True  # schedulers check that step() was called first
        results = compressor.results
        split = [results.split(group["params"]) for group in self.param_groups]
        own = [{**group, "params": others} for group, (_, others) in zip(self.param_groups, split)]
        if not compressor.has_begun:
            self._refuse_foreign_gradients(own)
        alone = {p for group in own for p in group["params"]}
        if alone:
            results.tell_of_others(alone, type(self).__name__)
            self._step_by_itself(own)
        rates = compressor._follower.rates
        for index, (group, (moved, _)) in enumerate(zip(self.param_groups, split)):
            rate = float(group["lr"])
            results.tell_of_rates(rates.get(index, rate), rate, moved)
            if not is_decoupled(self, group):  # type: ignore[arg-type]
                results.tell_of_decay(group["weight_decay"], moved)
            self._apply(group, moved)
        self._count(alone)
        results.end_step(self)
        return loss

    def _count(self, alone: Collection[torch.Tensor]) -> None:
        """Count a step in the state of every parameter that has a gradient, as Adam does, except
        the parameters ``alone``, which the original class has updated. If a count is missing later,
        the program has cleared the state.

        Before the first result, also create moments of zeros, and count no step: Horovod's
        ``broadcast_optimizer_state`` takes a step with zero gradients, and expects a complete state
        afterwards.
        """
        compressor, states = self.hvd_sparse_compressor, []
        has_begun = compressor.has_begun
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or parameter in alone:
                    continue
                state = self.state[parameter]
                states.append(state)
                if "step" in state:
                    # Muon's reference implementation counts with a Python number.
                    state["step"] = torch.as_tensor(state["step"], dtype=torch.float32)
                    continue
                state["step"] = torch.zeros((), dtype=torch.float32)
                if not has_begun:
                    made = {name: torch.zeros_like(parameter) for name in moments_in(group)}
                    if "momentum_decay" in group:
                        made[PRODUCT] = torch.ones((), dtype=torch.float32)
                    state.update({**made, **state})
                    compressor.made_states.add(id(parameter))
        if has_begun and states:
            torch._foreach_add_([state["step"] for state in states], 1.0)

    def _whole_state(self) -> Settings:
        compressor = self.hvd_sparse_compressor
        whole: Settings = defaultdict(dict)
        groups = _groups_by_parameter(self.param_groups)
        for parameter, state in self.state.items():
            # The optimizer's own moments, or loaded ones that the compressor has not taken over.
            has_own = bool(set(state) & set(MOMENTS))
            moments = {} if has_own else compressor.optimizer_state_of(parameter)
            group = groups.get(parameter, {})
            if moments and "momentum_decay" in group:
                beta1, decay = float(group["betas"][0]), float(group["momentum_decay"])
                product = product_of_nadam(beta1, decay, int(moments["step"]))
                moments[PRODUCT] = torch.tensor(product, dtype=torch.float32)
            # Horovod's broadcast writes Adam's numbers to this dictionary: use the optimizer's own.
            is_own = "betas" in group and not moments
            held = whole[parameter] = state if is_own else {**state, **moments}
            if "use_muon" in group and "step" in held:
                # Muon's reference has a Python number here, which Horovod broadcasts as such.
                held["step"] = int(held["step"])
        return whole

    def __reduce__(self) -> Value:
        """Pickle and copy the object as an optimizer of the original class, with its complete
        state."""
        state, groups = self._whole_state(), _groups_by_parameter(self.param_groups)
        for parameter, held in state.items():
            if "betas" not in groups.get(parameter, {}):
                held.pop("step", None)
        # A state that has only a step was made by ``_count``.
        kept = {p: held for p, held in state.items() if set(held) - {"step"}}
        members = {
            "defaults": self.defaults,
            "param_groups": self.param_groups,
            "state": defaultdict(dict, kept),
        }
        return object.__new__, (type(self).hvd_sparse_base,), members

    def state_dict(self) -> Settings:
        """Return the optimizer's state with this rank's moments, which the compressor keeps, in the
        format of the original class."""
        kept, self.state = self.state, self._whole_state()
        try:
            saved: Settings = super().state_dict()  # type: ignore[misc]
        finally:
            self.state = kept
        # SGD and Muon have no count, and Horovod's broadcast needs equal entries on all ranks.
        uncounted = {
            i for group in saved["param_groups"] if "betas" not in group for i in group["params"]
        }
        if uncounted:
            states: Settings = saved["state"]
            counts = {
                i: int(s.pop("step")) for i, s in states.items() if "step" in s and i in uncounted
            }
            saved["state"] = {i: state for i, state in states.items() if state}
            if not self.hvd_sparse_compressor.counts_in_groups:
                saved[STEPS] = counts
                return saved
            for group in saved["param_groups"]:
                if any(steps := [counts.get(i, 0) for i in group["params"]]):
                    group[STEPS] = steps
        return saved

    def load_state_dict(self, state_dict: Settings) -> None:
        """Load a state that this class or the original class has saved. The compressor continues
        from the moments in the state, with one exception: if the state counts as many steps as the
        compressor has taken, the compressor keeps its own moments, because such a state is that of
        rank 0, saved or broadcast at the present step."""
        for group in state_dict["param_groups"]:
            refuse_options(type(self).__name__, group)
        self.hvd_sparse_compressor.made_states.clear()
        super().load_state_dict(state_dict)
        self.take_counts()
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for index, parameter in zip(saved, parameters):
            self._put_count(parameter, state_dict.get(STEPS, {}).get(index, 0))

    def take_counts(self) -> None:
        """Move the numbers of steps in loaded parameter groups to the parameters' states."""
        for group in self.param_groups:
            for parameter, steps in zip(group["params"], group.pop(STEPS, ())):
                self._put_count(parameter, steps)

    def _put_count(self, parameter: torch.Tensor, steps: int) -> None:
        state = self.state.get(parameter)
        if state is not None and (state or steps):
            state.setdefault("step", torch.tensor(steps, dtype=torch.float32))

    def _apply(self, group: Settings, parameters: list[torch.Tensor]) -> None:
        if not parameters:
            return
        rate = float(group["lr"])
        if group["weight_decay"] and is_decoupled(self, group):  # type: ignore[arg-type]
            # Like AdamW, shrink the parameters before the step, but not the update.
            torch._foreach_mul_(parameters, 1 - rate * float(group["weight_decay"]))
        moves: list[tuple[torch.Tensor, Any]] = [(p, p.grad) for p in parameters]
        for parameter, move in moves:
            if move.is_sparse:  # ``torch._foreach_add_`` supports no sparse tensors
                parameter.add_(move, alpha=-rate)
        dense = [each for each in moves if not each[1].is_sparse]
        if dense:
            torch._foreach_add_(*map(list, zip(*dense)), alpha=-rate)

    def _step_by_itself(self, groups: list[Settings]) -> None:
        results = self.hvd_sparse_compressor.results
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad.is_sparse and results.is_result_of(parameter):
                    parameter.grad = parameter.grad.to_dense()  # with sparse_as_dense=True
            name = "Muon" if is_muon(group) else "Adam"
            is_sgd = "dampening" in group
            if not is_sgd and any(p.grad.is_sparse for p in group["params"]):
                raise InvalidOption(
                    f"a parameter has a sparse gradient, which {name} does not support: "
                    f"{SPARSE_REMEDY}"
                )
            for parameter in group["params"]:
                state = self.state[parameter]
                if is_counted_alone(state):
                    state.clear()
                elif "betas" not in group:
                    state.pop("step", None)  # SGD and Muon do not count
        whole, self.param_groups = self.param_groups, groups
        try:
            unhooked(type(self).hvd_sparse_base.step)(self)
        finally:
            self.param_groups = whole

    def _refuse_foreign_gradients(self, groups: list[Settings]) -> None:
        """Raise InvalidOption if dense gradients reach the optimizer before any gradient has come
        through the compressor, because the program then bypasses the compressor. Zero gradients are
        accepted, because Horovod uses them to make an optimizer create its state."""
        for group in groups:
            dense = [p for p in group["params"] if not p.grad.is_sparse]
            if any(bool(p.grad.any()) for p in dense):
                raise InvalidOption(
                    f"gradients of the {type(self).__name__} do not come through the compressor "
                    f"that got it as optimizer=: {self.hvd_sparse_compressor.results.way}, or "
                    "leave out optimizer="
                )
            group["params"] = [p for p in group["params"] if p.grad.is_sparse]


setattr(Applying.step, OF_SCHEDULERS, True)


def is_handed_over(optimizer: Optimizer) -> bool:
    """Return whether a compressor that is not closed computes the optimizer's updates."""
    compressor = getattr(optimizer, "hvd_sparse_compressor", None)
    return compressor is not None and not compressor._is_closed


def _groups_by_parameter(groups: list[Settings]) -> dict[torch.Tensor, Settings]:
    return {parameter: group for group in groups for parameter in group["params"]}


class Follower:
    """Reads from the optimizer the settings of each tensor's memory, for example the momentum. The
    constructor changes the optimizer's class to a subclass of ``Applying``. Horovod then derives
    the class of its own optimizer from this subclass."""

    def __init__(self, optimizer: torch.optim.Optimizer, compressor: Any) -> None:
        Applying.mix_into(optimizer, hvd_sparse_compressor=compressor)
        optimizer.take_counts()  # of a state that was loaded before
        # A scheduler that was made before has stored the old ``step`` on the object.
        vars(optimizer).pop("step", None)
        # With this attribute, a GradScaler expects that ``step`` unscales gradients.
        vars(optimizer).pop("_step_supports_amp_scaling", None)
        self._compressor = compressor
        self._given = optimizer
        self._caller: Callable[[], Optimizer] = lambda: None
        self._places: dict[int, tuple[int, int]] = {}  # group, and place in the group
        self._settings: dict[int, tuple[Settings, Settings]] = {}  # by group
        self._with_value: dict[int, tuple[Settings, Settings]] = {}  # by parameter
        self._counted: set[int] = set()
        self.rates: dict[int, float] = {}  # of each group, in the last backward pass

    @property
    def _optimizer(self) -> Optimizer:
        return self._caller() or self._given

    def meet(self, caller: Optimizer) -> None:
        """Read settings from ``caller``, Horovod's optimizer, from now on. Raises InvalidOption if
        Horovod did not make ``caller`` from the optimizer given as ``optimizer=``."""
        if getattr(caller, "hvd_sparse_compressor", None) is not self._compressor:
            raise InvalidOption(
                f"the {type(caller).__name__} that calls the compressor is not the one that the "
                "compressor got as optimizer=: give the same optimizer to both, first to "
                "Compression.<method>(..., optimizer=optimizer), then to hvd.DistributedOptimizer"
            )
        if self._optimizer is not caller and self._optimizer.state and not caller.state:
            logger.warning(
                "the %s had a state when it was given to hvd.DistributedOptimizer, which starts "
                "without this state: load the state into Horovod's optimizer",
                type(caller).__name__,
            )
        # A scheduler of the plain optimizer would warn, because that optimizer takes no steps.
        vars(self._given)["_opt_called"] = True
        # Weakly: the class of the given optimizer holds this object, and as long as Horovod's
        # optimizer exists, its hooks stay on the parameters.
        self._caller = weakref.ref(caller)
        # Horovod's optimizer has its own groups, so the numbers of groups are looked up again.
        self._places, self._settings = {}, {}

    def settings_of(
        self, key: str, parameter: torch.Tensor, value: Callable[[], np.ndarray]
    ) -> Settings:
        """Return the settings of the parameter called ``key``, as arguments of the memory's method
        ``tune``. The function ``value`` returns the parameter's entries as a flat array, which
        weight decay needs. If possible, calls return the same dictionary until the parameter group
        changes or ``value`` returns another array."""
        optimizer, index = self._optimizer, self._group_of(parameter)
        if index is None:
            raise InvalidOption(
                f"tensor {key!r} is in none of the optimizer's parameter groups: give the "
                "compressor the parameters that the optimizer has"
            )
        group = optimizer.param_groups[index]
        known, settings = self._settings.get(index, ({}, {}))
        if known.get("params") is not group["params"] or known != group:
            settings = settings_of(optimizer, group, tuple(parameter.shape))
            # Muon's settings depend on the shape, and tensors may change in place: do not store.
            if not is_muon(group) and not any(map(torch.is_tensor, group.values())):
                self._settings[index] = dict(group), settings
        self.rates[index] = settings["rate"]
        # Read the parameter's value, perhaps from a device, only for weight decay.
        if not settings.get("weight_decay"):
            return settings
        now, last = value(), self._with_value.get(id(parameter))
        if last is None or last[0] is not settings or last[1]["parameter"] is not now:
            last = self._with_value[id(parameter)] = settings, {**settings, "parameter": now}
        return last[1]

    def settings_now(self, parameter: torch.Tensor) -> Settings | None:
        """Return a parameter's settings as ``settings_of`` does, but without the parameter's value,
        and without noting the rate. None if the parameter is in none of the optimizer's groups."""
        index = self._group_of(parameter)
        if index is None:
            return None
        shape = tuple(parameter.shape)
        return settings_of(self._optimizer, self._optimizer.param_groups[index], shape)

    def rate_of(self, parameter: torch.Tensor) -> tuple[float, int]:
        index = self._group_of(parameter)
        if index is None:
            return 0.0, 0
        return float(self._optimizer.param_groups[index]["lr"]), index

    def _group_of(self, parameter: torch.Tensor) -> int | None:
        groups = self._optimizer.param_groups
        index, place = self._places.get(id(parameter), (0, 0))
        known = groups[index]["params"] if index < len(groups) else ()
        if place < len(known) and known[place] is parameter:
            return index
        # The first call, or the program has moved parameters between groups.
        self._places = {
            id(each): (index, place)
            for index, group in enumerate(groups)
            for place, each in enumerate(group["params"])
        }
        return self._places.get(id(parameter), (None, 0))[0]

    def moments_of(self, parameter: torch.Tensor, steps: int) -> tuple[Settings, int] | None:
        """Return the moments with which the parameter's memory must continue, by name, and the
        number of steps that they have accumulated. Return None if the memory must keep its own
        moments, because no state was loaded, or because the loaded state is that of rank 0 at the
        present step. Return no moments and 0 if the program has cleared the state. ``steps`` is the
        number of steps that the memory's own moments have accumulated."""
        state = self._optimizer.state.get(parameter)
        if not state:
            if id(parameter) not in self._counted:
                return None
            self._counted.discard(id(parameter))
            return {}, 0
        self._counted.add(id(parameter))
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
        if len(state) == 1:  # in nearly every step
            return None
        given = {MOMENTS[name]: state.pop(name) for name in MOMENTS if name in state}
        given = {name: moment for name, moment in given.items() if moment is not None}
        if not given:
            return None
        counted, made = int(state["step"]), self._compressor.made_states
        is_made = id(parameter) in made
        made.discard(id(parameter))
        # If these are moments of rank 0, saved at the same step, or broadcast without a count (SGD,
        # Muon), this rank keeps its own.
        is_of_rank_0 = 0 < counted == steps or (is_made and not counted and steps > 0)
        return None if is_of_rank_0 else (given, counted)


@lru_cache(maxsize=8)  # all parameters have the same arguments
def product_of_nadam(beta1: float, decay: float, step: int) -> float:
    """Return the product of NAdam's momentum coefficients of the steps 1 to ``step``."""
    steps = np.arange(1, min(step, 100_000) + 1)  # the product of more factors is 0
    return float((beta1 * (1 - 0.5 * 0.96 ** (decay * steps))).prod())


def is_counted_alone(state: Settings) -> bool:
    """Return whether a parameter's state has only entries that ``Applying._count`` writes: a number
    of steps without moments, or 0 steps with moments of zeros."""
    step = state.get("step")
    moments = [state[name] for name in MOMENTS if state.get(name) is not None]
    # A count on a device is the optimizer's own, and reading it would wait for the device.
    is_own = isinstance(step, torch.Tensor) and not step.is_cpu
    if step is None or (moments and (is_own or step)):
        return False
    return not any(moment.is_sparse or bool(moment.any()) for moment in moments)


def moments_in(group: Mapping[str, Option]) -> list[str]:
    if "betas" in group:
        return ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group.get("amsgrad") else [])]
    return ["momentum_buffer"] if group["momentum"] or is_muon(group) else []
