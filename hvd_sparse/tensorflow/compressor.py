"""The compressor that TensorFlow and Keras programs give to Horovod's tape or optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import HorovodTensorflowCollective, check_name, hvd
from hvd_sparse.collectives.topology import rank_in
from hvd_sparse.compatibility import PLANNED, refuse_hiding
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.compressor import Compressor, check_process_set, is_elastic
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.optimizer_memory import Rates, warn_of_rare_entries
from hvd_sparse.plan.group_plan import GroupPlan
from hvd_sparse.plan.measuring import GraphPlannedGroups
from hvd_sparse.state.state_check import IncompatibleKeys
from hvd_sparse.step.buckets import one_per_tensor
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow.bucket import DenseContext, GraphBucket, SparseContext
from hvd_sparse.tensorflow.fallback import GraphFallback, Unbranched
from hvd_sparse.tensorflow.graph_functions import GraphFunctions, call_numpy
from hvd_sparse.tensorflow.identity import (
    CallSite,
    VariableIndex,
    check_names,
    check_reduction,
    find_call_site,
    refuse_xla,
    spec_of_unknown,
    token_of,
)
from hvd_sparse.tensorflow.keras3 import inner_of, refuse_horovods_wrapper
from hvd_sparse.tensorflow.optimizer import (
    Follower,
    calling_optimizer,
    habits_of,
    refuse_clipping,
    refuse_momentum,
)
from hvd_sparse.tensorflow.variables import VariableSource, refuse_tensorflow_1, specs_of
from hvd_sparse.tensorflow.witness import Witness
from hvd_sparse.types import Pace
from hvd_sparse.untyped import (
    Context,
    GradScaler,
    Optimizer,
    Option,
    Params,
    ProcessSet,
    Report,
    State,
    Value,
)


class TensorflowCompressor(Compressor):
    """A stateful compressor with Horovod's ``compress`` and ``decompress``.  Made by
    ``Compression``.

    ``compress`` runs when a graph is traced; the operations it builds run at every step.  All state
    is numpy, outside the graphs, so retracing, branches and ``tf.function`` do not affect it.

    Parameters
    ----------
    params : a model, a list of variables, or a callable that returns one
    configuration : parts and options
    process_set : Horovod's ranks of the reduction; None for all
    grad_scaler : the loss scaler: a Keras ``LossScaleOptimizer``, or a callable
    policy : chooses each step's way; None to compress at every step
    """

    def __init__(
        self,
        params: Params,
        configuration: Configuration,
        process_set: ProcessSet,
        grad_scaler: GradScaler = None,
        policy: GraphFallback | None = None,
    ) -> None:
        if configuration.groups not in (None, PLANNED):
            raise InvalidOption(
                f"groups is {configuration.groups!r}: in TensorFlow, Horovod's groups are the "
                "messages; give groups to hvd.DistributedGradientTape or hvd.DistributedOptimizer "
                "instead, or 'planned'"
            )
        refuse_hiding(
            configuration.rule, "only hvd_sparse.torch and hvd_sparse.ddp measure it in a run"
        )
        check_name(configuration.name)
        self._loss_scale, self._is_scaled = scale_of(grad_scaler), grad_scaler is not None
        # Without need, dense tensors are spared a call of Python at every step.
        self._finishes_dense = configuration.memory.finishes or grad_scaler is not None
        self._finishes_dense |= configuration.on_nonfinite == "raise"
        self._source = VariableSource(params)
        self._kernels = resolve_engine(configuration.engine)
        self.process_set = hvd.global_process_set if process_set is None else process_set
        check_process_set(self.process_set)
        place = f"tensorflow.{self.process_set.process_set_id}"
        super().__init__(configuration, place, self.process_set.size(), policy)
        self.collective = HorovodTensorflowCollective(self.process_set)
        self._fallback = policy
        self._planner: GraphPlannedGroups | None = None
        self._index: VariableIndex | None = None
        self._follower: Follower | None = None
        self._rates: Rates | None = None
        self._filling: tuple[object | None, GraphBucket | None] = (None, None)
        self._has_shaken_hands = False

    def __hash__(self) -> int:
        """Refuse Horovod's wrapper of a Keras 3 optimizer: it would average nothing, and it only
        ever hashes a compressor."""
        refuse_horovods_wrapper(calling_optimizer())
        return object.__hash__(self)

    def resolve(self) -> None:
        """Ask for the variables now, and settle the name; otherwise the first ``compress`` does."""
        if self._index is not None:
            return
        variables = self._source.variables()
        specs = specs_of(variables, self._source.prefix)
        self.configuration = self.configuration.for_tensors(specs)
        self._take_name(specs)
        self.step = Step(
            self.configuration, specs, one_per_tensor(specs, self.configuration), self._kernels
        )
        if self.configuration.exchange.needs_nodes and self.process_set.included():
            self.step.place(self.collective.rank, self.collective.world_size, self.collective.nodes)
        self._index = VariableIndex(variables)
        if self._follower is not None:
            paths = [self._source.paths[id(variable)] for variable in variables]
            self._follower.bind(self.step, self._index, paths, self._averaged)
            if self._rates is not None:
                self.step.pace_of = self._pace_of
        self._start(rank_in(self.process_set), hvd.rank)
        self.functions = GraphFunctions(
            self.step, self.collective, self._index.tokens(), self.watchdog.ledger, self._fallback
        )
        self.functions.follower = self._follower
        if self.plans_groups and self._is_called():
            self._planner = self.functions.planner = GraphPlannedGroups(self)
        self.functions.recorder = self._recorder

    @property
    def plans_groups(self) -> bool:
        """Return whether groups are planned in the run."""
        return self.configuration.groups == PLANNED

    @property
    def plan(self) -> GroupPlan | None:
        return None if self._planner is None else self._planner.plan

    @property
    def groups(self) -> list[list[Value]] | None:
        """Return the planned groups for Horovod's ``groups=``, lists of variables; None before a
        plan exists.

        Raises
        ------
        InvalidOption : two variables have one name, and Horovod identifies grouped ones by name
        """
        names = None if self._planner is None else self._planner.groups
        if names is None or self._index is None:
            return None
        variables = dict(zip((spec.key for spec in self.step.specs), self._index.variables))
        groups = [[variables[name] for name in members] for members in names]
        check_names([variable.name for members in groups for variable in members])
        return groups

    def replan(self) -> bool:
        """Begin a step of a run with ``groups="planned"``; return whether ``groups`` have changed,
        so that functions traced with them must be traced again.

        All ranks call it before every training step, outside ``tf.function``. When groups are
        decided, ranks wait for each other.  Before the first gradient it has no effect.

        Raises
        ------
        InvalidOption : groups is not "planned"
        ExchangeTimeout : another rank does not call it
        """
        if not self.plans_groups:
            raise InvalidOption(
                f"groups is {self.configuration.groups!r}, so there is nothing to plan: make the "
                "compressor with groups='planned', or leave replan() out"
            )
        if self._planner is None or not self._has_shaken_hands:
            return False
        return self._planner.replan()

    def stats(self) -> Report:
        self.resolve()
        return super().stats()

    def log(self, *, step: int | None = None, **metrics: Option) -> None:
        self.resolve()
        super().log(step=step, **metrics)

    def footprint(self) -> Report:
        self.resolve()
        return super().footprint()

    def state_dict(self) -> Report:
        self.resolve()
        return super().state_dict()

    def load_state_dict(self, state: State, strict: bool = True) -> IncompatibleKeys:
        self.resolve()
        found = super().load_state_dict(state, strict)
        if self._follower is not None and self._follower.slots is not None:
            self._follower.slots.forget()
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        self.resolve()
        super().save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        self.resolve()
        super().load(path)

    def rejoin(self) -> None:
        self.resolve()
        super().rejoin()
        self.functions.recorder = self._recorder

    def _forget_world(self) -> None:
        super()._forget_world()
        self.functions.forget()
        if self._planner is not None:
            self._planner.forget_world(self)

    @tf.autograph.experimental.do_not_convert
    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Context]:
        """Return the tensor for Horovod to allreduce instead of the gradient, and the context for
        ``decompress``."""
        refuse_tensorflow_1()
        refuse_xla()
        site = find_call_site(tensor)
        check_reduction(site, self.process_set)
        if not self._has_shaken_hands:
            self._shake_hands(site)
        elif self._follower is not None:
            self._look_at(calling_optimizer())
        assert self._index is not None
        position, variable = self._index.find(tensor, site.variable)
        if position is not None:
            spec = self.step.specs[position]
            if self._follower is not None:
                self._follower.met.add(position)
        else:
            spec = spec_of_unknown(tensor, variable, self.configuration)
        wire_dtype = tf.as_dtype(spec.accumulator)
        wide = tf.cast(tensor, wire_dtype)
        flat = tf.reshape(wide, [-1])
        token, scale = token_of(variable), self._scale()
        parameter = self._read(variable, wire_dtype)
        if not self.configuration.is_sparse(spec.shape, spec.numel):
            self.functions.note_dense(spec)
            return wide, DenseContext(tensor.dtype, token, scale, parameter)
        self.functions.note_sparse(spec)
        bucket = self._bucket_of(site, wire_dtype)
        bucket.join(spec, self.configuration)
        wire, number = bucket.send(flat, token, scale)
        return wire, SparseContext(
            number, bucket, flat, spec, tensor.dtype, tensor.shape, parameter
        )

    def _bucket_of(self, site: CallSite, dtype: tf.DType) -> GraphBucket:
        """Return the bucket of Horovod's group, or a new one."""
        policy, (together, bucket) = self._fallback, self._filling
        branches = Unbranched() if policy is None else policy.branches(self, site)
        if bucket is None or site.together is None or site.together is not together:
            phases = self.step.exchange.phases(
                self.configuration.selector, self.collective.world_size
            )
            is_group = site.together is not None
            name = f"hvd_sparse.{self.name}"
            bucket = GraphBucket(
                self.functions, phases, name, self.process_set, dtype, branches, is_group=is_group
            )
            self._filling = (site.together, bucket) if is_group else (None, None)
        return bucket

    def _read(self, variable: Value, dtype: tf.DType) -> tf.Tensor:
        if not self.configuration.memory.finishes:
            return tf.zeros([0], dtype)
        return tf.reshape(tf.cast(tf.convert_to_tensor(variable), dtype), [-1])

    @tf.autograph.experimental.do_not_convert
    def decompress(self, tensor: tf.Tensor, ctx: Context) -> tf.Tensor:
        """Return the reduced gradient, in the dtype and shape of ``compress``'s argument."""
        if ctx is None:
            return tensor
        if isinstance(ctx, DenseContext):
            reduced = tensor
            if self._finishes_dense:
                flat = call_numpy(
                    self.functions.finish_dense,
                    [ctx.token, ctx.scale, tf.reshape(tensor, [-1]), ctx.parameter],
                    tensor.dtype,
                    name="hvd_sparse_finish",
                )
                reduced = tf.reshape(flat, tf.shape(tensor))
            return tf.cast(reduced, ctx.dtype)
        self._filling = (None, None)
        # One function takes both, so that neither the carrier's verdict nor the messages can be
        # overlooked: a control dependency between them does not hold inside Horovod's branches.
        inputs = [ctx.number, tensor, ctx.bucket.gathered(), ctx.parameter]
        dtype = tf.as_dtype(ctx.spec.accumulator)

        def build() -> tf.Tensor:
            return call_numpy(self.functions.receive, inputs, dtype, name="hvd_sparse_receive")

        flat = ctx.bucket.branches.receive(build, ctx.flat, tensor)
        result = tf.cast(tf.reshape(flat, ctx.spec.shape), ctx.dtype)
        result.set_shape(ctx.shape)
        return result

    def take_over(self, optimizer: Optimizer) -> None:
        """Do an optimizer's work from now on; the optimizer applies the result.  ``Compression``
        calls it once.

        In a world of one rank Horovod calls no compressor, so the optimizer stays unchanged.
        """
        if self._is_called():
            self._follower = Follower(optimizer, self.configuration.memory)

    def follow(self, rates: Rates) -> None:
        """Let densities follow the learning rate of the optimizer that was handed over."""
        self._rates = rates

    def _pace_of(self, position: int) -> Pace:
        assert self._follower is not None and self._rates is not None
        steps = self.step.transactions.staged(position).steps
        return self._rates.pace(self._follower.rate, 0, steps)

    def _averaged(self, position: int) -> int:
        """Return over how many ranks the optimizer's gradients of a tensor are averaged; the
        memory's are this rank's own."""
        spec = self.step.specs[position]
        is_sparse = self.configuration.is_sparse(spec.shape, spec.numel)
        return self._size_of_world() if is_sparse else 1

    def scale_by(self, optimizer: Optimizer) -> None:
        """Take the loss scale from a Keras 3 ``LossScaleOptimizer``, unless a scaler was given.

        None : gradients are unscaled before they come, whatever scaler was given
        """
        if optimizer is None:
            self._loss_scale = scale_of(None)
        elif not self._is_scaled:
            self._loss_scale, self._is_scaled = scale_of(optimizer), True
            self._finishes_dense = True

    def _scale(self) -> tf.Tensor:
        """Return the loss scale, followed by the hyper-parameters of a handed-over optimizer."""
        scale = self._loss_scale()
        return scale if self._follower is None else self._follower.beside(scale)

    def _is_called(self) -> bool:
        """Return whether Horovod will run the compressor's operations; it traces them anyway."""
        return self.process_set.included() and (self.process_set.size() > 1 or is_elastic())  # type: ignore[no-any-return]

    def _look_at(self, caller: Optimizer) -> None:
        """Check Horovod's Keras optimizer, which calls; None with a tape."""
        if caller is None or not self._is_called():
            return
        if self._follower is not None:
            self._follower.meet(caller)
        elif self.configuration.memory.counts_votes:
            return  # votes know no size, so that momentum behind them is the optimizer's own affair
        elif self.configuration.memory.finishes:
            refuse_momentum(caller)
            refuse_clipping(inner_of(caller), self.configuration.memory)
        elif not self.is_forewarned and (what := habits_of(caller)) is not None:
            warn_of_rare_entries(self.configuration, what)

    def _shake_hands(self, site: CallSite) -> None:
        caller = calling_optimizer()
        self._look_at(caller)
        self.resolve()
        if caller is None and self._index is not None and self._is_called():
            specs = {
                position: spec
                for position, spec in enumerate(self.step.specs)
                if self.configuration.is_sparse(spec.shape, spec.numel)
            }
            follower = self._follower
            factors = None if follower is None else follower.factors
            self.functions.witness = Witness(self._index.variables, specs, factors)
        if site.op is not None and site.scales == (1.0, 1.0):  # else the carrier will say
            self.step.reduction = "sum" if site.op == hvd.Sum else "average"
        # TensorFlow traces on ranks outside the set too, but never runs there; an elastic state
        # meets before tracing.
        if self.process_set.included() and self._world is None:
            self._meet()
        self._has_shaken_hands = True


def scale_of(grad_scaler: GradScaler) -> Callable[[], tf.Tensor]:
    """Return a function that builds a step's loss scale while a graph is traced.

    The scale of a Keras ``LossScaleOptimizer`` is a variable, which the graph reads (in Keras 3
    from the first step on); a callable is called at every step; None gives 1.

    Raises
    ------
    InvalidOption : it is none of these
    """
    if grad_scaler is None:
        return lambda: tf.constant(1.0, tf.float32)
    if hasattr(grad_scaler, "loss_scale"):
        return lambda: tf.cast(tf.convert_to_tensor(grad_scaler.loss_scale), tf.float32)
    if hasattr(grad_scaler, "dynamic_growth_steps"):
        return lambda: _scale_of_keras_3(grad_scaler)
    if callable(grad_scaler):
        return lambda: _ask(grad_scaler)
    raise InvalidOption(
        f"grad_scaler is {grad_scaler!r}: give the Keras LossScaleOptimizer that scales the loss, "
        "or a callable that returns the scale"
    )


def _scale_of_keras_3(optimizer: GradScaler) -> tf.Tensor:
    scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    return tf.cast(tf.convert_to_tensor(scale), tf.float32)


def _ask(call: Callable[[], Value]) -> tf.Tensor:
    scale = call_numpy(lambda: np.float32(call()), [], tf.float32, name="hvd_sparse_scale")
    scale.set_shape([])
    return scale
