"""The compressor for the argument ``compression`` of Horovod's tape or Keras optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.contract import is_elastic
from hvd_sparse.collectives.horovod_tensorflow import HorovodTensorflowCollective, check_name, hvd
from hvd_sparse.composition import PLANNED, refuse_hiding
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption, UnsupportedInput
from hvd_sparse.frontend.compressor import Compressor, check_process_set, scale_from
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.optimizer_memory import Rates, judge
from hvd_sparse.plan.measuring import GraphPlannedGroups
from hvd_sparse.state.state_check import IncompatibleKeys
from hvd_sparse.step.buckets import one_per_tensor
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow.follower import Follower
from hvd_sparse.tensorflow.graph import GraphCall, GraphFallback
from hvd_sparse.tensorflow.graph_functions import GraphFunctions, Witness, call_numpy
from hvd_sparse.tensorflow.optimizer import (
    WAY_OUT,
    calling_optimizer,
    inner_of,
    is_optimizer_of_keras_3,
    refuse_clipping,
)
from hvd_sparse.tensorflow.variables import (
    CallSite,
    VariableIndex,
    VariableSource,
    callers,
    check_names,
    find_call_site,
    is_exporting,
    runtime_token,
    spec_of_unknown,
)
from hvd_sparse.types import (
    GradScaler,
    Optimizer,
    Params,
    ProcessSet,
    Settings,
    State,
    TensorSpec,
    Value,
)


class TensorflowCompressor(Compressor):
    """A compressor for the argument ``compression`` of Horovod's ``DistributedGradientTape`` and
    ``DistributedOptimizer``, with Horovod's methods ``compress`` and ``decompress``.

    ``compress`` runs when a graph is traced, and adds operations that run at every step. The state,
    for example the residuals, is kept in numpy arrays outside the graphs, so it does not change if
    TensorFlow traces a function again.
    """

    way_to_remake = (
        "Compression.from_config(params, config); in an elastic run, give it to a state of "
        "hvd_sparse.tensorflow.elastic or, with Keras 3, of hvd_sparse.keras.elastic"
    )
    functions: GraphFunctions
    _index: VariableIndex

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
        if is_elastic() and configuration.exchange.varies_phases:
            raise InvalidOption(
                f"exchange is {configuration.exchange.id!r} in an elastic run: a graph of "
                "TensorFlow would keep the number of its messages when the number of ranks "
                "changes; give another, for example exchange='allgather', as topk uses it"
            )
        refuse_hiding(
            configuration.rule, "only hvd_sparse.torch and hvd_sparse.ddp measure it in a run"
        )
        check_name(configuration.name)
        self._scaler = grad_scaler
        if not (grad_scaler is None or is_scaler(grad_scaler) or callable(grad_scaler)):
            raise InvalidOption(
                f"grad_scaler is {grad_scaler!r}: give the Keras LossScaleOptimizer that scales "
                "the loss, or a callable that returns the scale"
            )
        self._source = VariableSource(params)
        self._kernels = resolve_engine(configuration.engine)
        self.process_set = hvd.global_process_set if process_set is None else process_set
        check_process_set(self.process_set, self.process_set.size())
        place = f"tensorflow.{self.process_set.process_set_id}"
        super().__init__(configuration, place, policy)
        self.collective = HorovodTensorflowCollective(self.process_set)
        self._follower: Follower | None = None
        self._call: GraphCall | None = None
        self._has_shaken_hands = False
        self._callers: dict[int, Optimizer] = {}

    def __hash__(self) -> int:
        """Return the hash by which Horovod caches its functions that reduce gradients. While
        Horovod wraps an optimizer, each optimizer gets a hash of its own, and so a reducing
        function of its own. Otherwise the hash is the usual hash of the object. Raises
        UnsupportedInput if the optimizer is of Keras 3, which Horovod does not support."""
        caller = calling_optimizer()
        if is_optimizer_of_keras_3(caller) and type(caller).__module__ == "horovod._keras":
            raise UnsupportedInput(f"{type(caller).__name__} is an optimizer of Keras 3. {WAY_OUT}")
        # A traced function reads the variables of its optimizer, and no longer calls ``compress``,
        # which checks the optimizer, so another optimizer needs another function.
        if caller is None:
            return object.__hash__(self)
        self._check_open()
        self._callers[id(caller)] = caller  # kept, so that no id is used again
        return hash((id(self), id(caller)))

    def resolve(self) -> None:
        """Find the variables to compress, and determine the compressor's name from them. This
        happens at the first ``compress``, or earlier if the compressor's state is needed, because
        the first batch may build the model."""
        if hasattr(self, "functions"):
            return
        self._check_open()
        variables = self._source.variables()
        is_planned = self.configuration.groups == PLANNED and self._is_called()
        if is_planned:  # before the compressor takes a name, which a refused one would keep
            check_names([variable.name for variable in variables])
        specs = self._source.specs(variables)
        configuration = self.configuration = self.configuration.for_tensors(specs)
        self.name = self._naming.take(specs)
        buckets = one_per_tensor(specs, configuration)
        step = self.step = Step(configuration, specs, buckets, self._kernels)
        step.place(self.collective)
        self._index = VariableIndex(variables)
        if self._follower is not None:
            paths = [self._source.paths[id(variable)] for variable in variables]
            self._follower.bind(step, self._index, paths, self._size_of_world)
        self._start(hvd.rank())
        if is_planned:
            self._policy = GraphPlannedGroups(step, self.name)
        self.functions = GraphFunctions(self, self._index.tokens(), self._policy)
        self.functions.follower, self.functions.recorder = self._follower, self._recorder
        self.log_footprint()

    @property
    def groups(self) -> list[list[Value]] | None:
        """The planned groups as lists of variables, for Horovod's option ``groups``; None before a
        plan exists. Raises InvalidOption if two of the variables have the same name."""
        if self.plan is None:
            return None
        self._check_open()
        variables = dict(zip((spec.key for spec in self.step.specs), self._index.variables))
        # Horovod cannot reduce a group without gradients.
        used = (m for m in self.plan.groups if not self.functions.traced.isdisjoint(m))
        return [[variables[name] for name in members] for members in used]

    def replan(self) -> bool:
        """Begin a training step of a run with ``groups="planned"``. Return whether ``groups`` has
        changed. If so, functions that were traced with the old groups must be traced again.

        All ranks call this method before every training step, outside of ``tf.function``. In the
        step that decides the groups, ranks wait for each other. The call has no effect before the
        ranks have compared their settings. They do this at the first gradient or, in an elastic
        run, when the state is synchronized.

        Raises
        ------
        InvalidOption : groups is not "planned"
        ExchangeTimeout : another rank does not call ``replan``
        """
        if self.configuration.groups != PLANNED:
            raise InvalidOption(
                f"groups is {self.configuration.groups!r}, so there is nothing to plan: make the "
                "compressor with groups='planned', or leave replan() out"
            )
        # In an elastic run, ranks meet before the first step. From then on they count steps alike,
        # also a new worker, which has had no gradient yet.
        if not isinstance(self._policy, GraphPlannedGroups) or not self.step.world_size:
            return False
        return self._policy.replan(self)

    def load_state_dict(self, state: State, strict: bool = True) -> IncompatibleKeys:
        found = super().load_state_dict(state, strict)
        if self._follower is not None:
            self._follower.forget()
        return found

    def commit(self) -> None:
        super().commit()
        # Horovod's ``TensorFlowState`` copies the variables that the optimizer had at first, and
        # does not ask for ``optimizer.variables``.
        if self._follower is not None:
            self._follower.show()

    def has_reduced(self, variables: Iterable[Value]) -> None:
        """Note that gradients of these variables came through this compressor. Horovod does not
        call ``compress`` for them if it uses its graph for other variables of the same shapes."""
        if self._follower is not None and hasattr(self, "_index"):
            found = map(self._index.lookup, variables)
            self._follower.met.update(i for i in found if i is not None)

    def rejoin(self) -> None:
        super().rejoin()
        self.functions.recorder = self._recorder

    def _forget_world(self) -> None:
        super()._forget_world()
        self.functions.forget()

    def close(self) -> None:
        """End telemetry and the watchdog, and free the name, the state, and the variables of model
        and optimizer. Afterwards, only reports can be read, so save the state before."""
        was_closed = self._is_closed
        super().close()
        if was_closed:
            return
        # Horovod's cache of reducing functions keeps this object, and the functions that its graphs
        # call, until the program ends. So drop here what they refer to.
        if self._follower is not None:
            self._follower.close()
        if hasattr(self, "functions"):
            self.functions.close()
            self.step.transactions.reset()
            self.step.settings_of = self.step.pace_of = None
            del self._index
        self._follower = self._scaler = self._call = None
        self._callers.clear()
        del self._source

    @tf.autograph.experimental.do_not_convert
    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Value]:
        """Return the tensor that Horovod allreduces in place of the gradient, and a function that
        ``decompress`` calls with the reduced tensor. While TensorFlow exports the model, nothing is
        compressed: return the gradient and None."""
        if is_exporting():
            return tensor, None
        self._check_open()
        site, caller = find_call_site(tensor, self.process_set), calling_optimizer()
        if not self._has_shaken_hands:
            self._shake_hands(site, caller)
        elif self._follower is not None:
            self._look_at(caller)
        spec, variable = self._identify(tensor, site)
        is_sparse = self.configuration.is_sparse(spec.shape, spec.numel)
        call = self._call_of(site, is_sparse)
        wire_dtype = tf.as_dtype(spec.accumulator)
        wide = tf.cast(tensor, wire_dtype)
        flat = tf.reshape(wide, [-1])
        self._find_scaler(caller)
        token, scale = runtime_token(variable), self._loss_scale()
        if self._follower is not None:
            scale = self._follower.beside(scale)
        parameter = tf.zeros([0], wire_dtype)
        if self.configuration.memory.reads_parameter:
            parameter = tf.reshape(tf.cast(tf.convert_to_tensor(variable), wire_dtype), [-1])
        if not is_sparse:
            is_raising = self.configuration.on_nonfinite == "raise"
            has_memory = self.configuration.memory.finishes and self._follower is None
            if not (has_memory or self._scaler is not None or is_raising):
                call.beside[spec.key] = spec.numel * spec.accumulator.itemsize
                return wide, lambda reduced: tf.cast(reduced, tensor.dtype)
            self.functions.traced.add(spec.key)
            enter = partial(self.functions.send_dense, spec.numel, call.beside)
            inputs = [flat[:1], token, scale]
            number = call_numpy(enter, inputs, tf.int64, name="hvd_sparse_enter")

            def finish_dense(reduced: tf.Tensor) -> tf.Tensor:
                nothing = tf.zeros([0], tf.uint8)
                inputs = [number, tf.reshape(reduced, [-1]), nothing, parameter]
                receive = self.functions.receive
                result = call_numpy(receive, inputs, reduced.dtype, name="hvd_sparse_finish")
                return tf.cast(tf.reshape(result, tf.shape(reduced)), tensor.dtype)

            return wide, finish_dense
        self.functions.traced.add(spec.key)
        bucket = call.bucket(site.together, wire_dtype)
        wire, number = bucket.send(spec, flat, token, scale)

        def finish(reduced: tf.Tensor) -> tf.Tensor:
            result = bucket.receive(number, flat, reduced, parameter)
            result = tf.cast(tf.reshape(result, spec.shape), tensor.dtype)
            result.set_shape(tensor.shape)
            return result

        return wire, finish

    def _identify(self, tensor: tf.Tensor, site: CallSite) -> tuple[TensorSpec, Value]:
        position, variable = self._index.find(tensor, site.variable)
        if position is None:
            return spec_of_unknown(tensor, variable, self.configuration), variable
        if self._follower is not None:
            self._follower.met.add(position)
        return self.step.specs[position], variable

    def _call_of(self, site: CallSite, is_sparse: bool) -> GraphCall:
        call = self._call
        if call is None or call.site.gradients is not site.gradients:
            call = GraphCall(self, site)
        call.left -= 1
        # Drop the object with the call's last gradient, because it keeps the traced graph alive.
        self._call = call if call.left else None
        if is_sparse and call.way is None and isinstance(self._policy, GraphFallback):
            self._policy.add_branches(call)
        return call

    def _loss_scale(self) -> tf.Tensor:
        """Return the loss scale as a float32 scalar tensor, which the graph evaluates at every
        step. It is 1 if nothing scales the loss."""
        scaler = self._scaler
        if scaler is None:
            return tf.constant(1.0, tf.float32)
        for name in ("loss_scale", "dynamic_scale"):
            if hasattr(scaler, name):
                return tf.cast(tf.convert_to_tensor(getattr(scaler, name)), tf.float32)

        def scale_now() -> np.float32:
            # Ask ``self``: TensorFlow keeps this function, and ``close`` drops the scaler.
            return np.float32(scale_from(lambda: np.float32(_scale_of(self._scaler))))

        scale = call_numpy(scale_now, [], tf.float32, name="hvd_sparse_scale")
        scale.set_shape([])
        return scale

    @tf.autograph.experimental.do_not_convert
    def decompress(self, tensor: tf.Tensor, ctx: Value) -> tf.Tensor:
        """Return the reduced gradient, with the dtype and shape of the gradient."""
        return tensor if ctx is None else ctx(tensor)

    def take_over(self, optimizer: Optimizer) -> None:
        """From now on, compute the optimizer's updates in the memory; it only applies them."""
        if self._is_called():
            self._follower = Follower(optimizer, self.configuration.memory)

    def _optimizer_settings(self, position: int) -> Settings | None:
        follower = self._follower
        return None if follower is None else follower.settings_of(position, in_step=False)

    def follow(self, rates: Rates) -> None:
        if self._follower is not None:
            self._follower.rates = rates

    def scale_by(self, optimizer: Optimizer) -> None:
        """From now on, read the loss scale from ``optimizer``, a ``LossScaleOptimizer``, unless the
        option ``grad_scaler`` was given. If ``optimizer`` is None, gradients are not scaled."""
        if optimizer is None or self._scaler is None:
            self._scaler = optimizer

    def _find_scaler(self, caller: Optimizer) -> None:
        """Find the ``LossScaleOptimizer`` around an optimizer of Keras 2, to read the loss scale
        from it. It is searched here, because under mixed_float16 ``Model.compile`` makes the
        ``LossScaleOptimizer`` after the program has made the compressor."""
        if self._scaler is not None or caller is None or is_optimizer_of_keras_3(caller):
            return
        for frame in callers():
            around = frame.f_locals.get("self")
            if hasattr(type(around), "inner_optimizer") and around.inner_optimizer is caller:
                self.scale_by(around)

    def _is_called(self) -> bool:
        """Return whether Horovod calls this compressor in a step. It does not on ranks outside of
        the process set, nor on a single rank, unless others may join (in an elastic run)."""
        return self.process_set.included() and (self.process_set.size() > 1 or is_elastic())  # type: ignore[no-any-return]

    def _look_at(self, caller: Optimizer) -> None:
        if caller is None or not self._is_called():
            return
        if self._follower is not None:
            self._follower.meet(caller)
            return
        optimizer, memory = inner_of(caller), self.configuration.memory
        with tf.init_scope():  # the settings are values, which cannot be read inside a graph
            settings = optimizer.get_config()
        # This runs before ``resolve``, because a compressor that is refused must take no name.
        configuration = self.configuration.for_tensors(self._source.specs(self._source.variables()))
        judge(configuration, [settings], is_forewarned=self.is_forewarned)
        if memory.finishes and not memory.counts_votes:
            refuse_clipping(optimizer, memory)

    def _shake_hands(self, site: CallSite, caller: Optimizer) -> None:
        self._look_at(caller)
        self.resolve()
        if caller is None and self._is_called():
            specs = {i: self.step.specs[i] for i in sorted(self.step.compressed)}
            factors = None if self._follower is None else self._follower.factors
            self.functions.witness = Witness(self._index.variables, specs, factors)
        # In all other cases, the first carrier shows the reduction.
        if site.op is not None and site.scales == (1.0, 1.0):
            self.step.reduction = "sum" if site.op == hvd.Sum else "average"
        # Ranks outside of the process set run no handshake. Elastic states may have run it already.
        if self.process_set.included() and not self.step.world_size:
            self._meet()
        self._has_shaken_hands = True


def is_scaler(thing: GradScaler) -> bool:
    return hasattr(thing, "loss_scale") or hasattr(thing, "dynamic_growth_steps")


def _scale_of(scaler: GradScaler) -> Value:
    if scaler is None:  # the compressor is closed, and refuses the gradient later
        return 1.0
    if not is_scaler(scaler):
        return scaler()
    # Keras 3 creates the scale in the first update, after which the same graph may run, too.
    return getattr(scaler, "dynamic_scale", scaler.initial_scale)
