"""Horovod's tape and optimizer wrapper, for Keras 3."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import keras
import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import hvd
from hvd_sparse.composition import PLANNED
from hvd_sparse.errors import InvalidOption, UnsupportedInput
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.optimizer import derive, inner_of, is_optimizer_of_keras_3
from hvd_sparse.tensorflow.variables import callers, check_names, refuse_xla, value_of, values_of
from hvd_sparse.types import Optimizer, Option, ProcessSet, Value

SCOPE = "hvd_sparse/"
"""Name scope of collectives, in place of Keras's scope, which is the optimizer's name: Keras counts
optimizers in these names, so ranks with different numbers of optimizers would wait forever."""
Reduce = Callable[[list[Value], list[Value]], list[Value]]
AROUND = (
    "a LossScaleOptimizer skips a step only on ranks whose gradients are not finite, and the "
    "other ranks would wait for these: put DistributedOptimizer around "
    "keras.optimizers.LossScaleOptimizer(optimizer) (model.compile() makes one for mixed_float16 "
    "if it is given none)"
)


def DistributedGradientTape(gradtape: tf.GradientTape, **options: Option) -> Value:
    """Return a ``horovod.tensorflow.DistributedGradientTape`` that also accepts Keras 3 variables,
    which lack the method ``ref()`` that Horovod calls.

    Parameters
    ----------
    gradtape : the tape to wrap
    options : all options of Horovod's tape, for example ``compression``, ``op``, ``groups`` and
        ``process_set``
    """
    if isinstance(options.get("groups"), list):
        options["groups"] = values_of(options["groups"])
    tape = hvd.DistributedGradientTape(gradtape, **options)
    # Set on the class, which Horovod makes for every tape: in a subclass, Horovod's
    # ``super(self.__class__, self)`` would fail, and functions on the object would hold the tape.
    kind = type(tape)
    gradient, register = kind.gradient, kind.register_local_source
    split = kind.get_local_and_global_gradients

    def gradient_of_values(
        self: Value, target: Value, sources: Value, *others: Value, **named: Value
    ) -> Value:
        return gradient(self, target, values_of(sources), *others, **named)

    def split_of_values(
        self: Value, target: Value, sources: Value, *others: Value, **named: Value
    ) -> Value:
        given = {value_of(source).ref(): source for source in sources}
        found = split(self, target, values_of(sources), *others, **named)
        return tuple([(given[v.ref()], each) for v, each in pairs] for pairs in found)

    kind.gradient, kind.get_local_and_global_gradients = gradient_of_values, split_of_values
    kind.register_local_source = lambda self, source: register(self, value_of(source))
    return tape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, *, local_layers: Value = None, **options: Option
) -> Value:
    """Return a ``DistributedGradientTape`` that does not reduce the gradients of some layers. Like
    Horovod's tape of this name, it divides these gradients by the number of ranks, unless
    ``scale_local_gradients`` is false.

    Parameters
    ----------
    gradtape : the tape to wrap
    local_layers : a layer, or a list of layers, whose variables this rank trains alone; None, the
        default, for none
    options : as for ``DistributedGradientTape``
    """
    tape = DistributedGradientTape(gradtape, **options)
    for layer in [local_layers] if isinstance(local_layers, keras.Layer) else local_layers or ():
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


class _Given(tf.GradientTape):  # type: ignore[misc]
    """A tape that gets gradients in place of a loss, so that Horovod's tape only reduces them."""

    def gradient(self, target: Value, *others: Value) -> Value:
        return target


def DistributedOptimizer(
    optimizer: Optimizer, *, backward_passes_per_step: int = 1, **options: Option
) -> Optimizer:
    """Make a Keras 3 optimizer average its gradients over all ranks before it applies them.

    The optimizer itself is changed and returned: its class becomes a subclass, and it keeps its
    variables and its schedule. A model that is saved with it loads without hvd_sparse. Clipping and
    weight decay follow the averaging. With ``gradient_accumulation_steps``, ranks exchange
    gradients once for all accumulated batches. If a ``LossScaleOptimizer`` is used as well, an
    allreduce after every batch tells all ranks whether the gradients of all ranks are finite.
    As with Horovod, ``optimizer.register_local_var(variable)``, called before the first step,
    excludes a variable from the averaging. Its gradient is divided by the number of ranks, unless
    ``scale_local_gradients`` is false.

    Parameters
    ----------
    optimizer : an optimizer of Keras 3; to scale the loss, the ``LossScaleOptimizer`` around it
    backward_passes_per_step : must be 1; use the optimizer's own ``gradient_accumulation_steps``
    options : options of ``horovod.tensorflow.DistributedGradientTape``: ``compression``, ``op``,
        ``gradient_predivide_factor``, ``groups`` (a number, or lists of variables; omit it if the
        compression plans groups), ``process_set``, ``sparse_as_dense``, ``scale_local_gradients``

    Raises
    ------
    InvalidOption : the optimizer is not of Keras 3 or is already distributed, or ``groups`` is
        given although the compression plans groups
    UnsupportedInput : Keras runs on another backend than TensorFlow
    """
    _check(optimizer, backward_passes_per_step)
    # Horovod's tape checks the options, reduces gradients, and knows the local variables.
    tape = DistributedGradientTape(_Given(), **options)
    reduce: Reduce = tape.gradient
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    inner = inner_of(optimizer)
    accumulates = is_scaling and bool(inner.gradient_accumulation_steps)
    compression = options.get("compression")
    if isinstance(compression, TensorflowCompressor):
        if is_scaling:
            compression.scale_by(None if accumulates else optimizer)
        if compression.configuration.groups == PLANNED:
            if options.get("groups") is not None:
                raise InvalidOption(
                    "groups is given to DistributedOptimizer, but the compression plans the "
                    "groups: leave one of the two out"
                )

            def reduce(gradients: list[Value], values: list[Value]) -> list[Value]:
                given = {v.ref() for v, g in zip(values, gradients) if g is not None}
                # The plan at the time of tracing; Horovod cannot reduce a group without gradients.
                groups = [
                    members
                    for members in values_of(compression.groups or ())
                    if any(value.ref() in given for value in members)
                ]
                now = DistributedGradientTape(_Given(), **{**options, "groups": groups or None})
                now._local_sources = tape._local_sources
                return now.gradient(gradients, values)  # type: ignore[no-any-return]

    local: dict[str, Value] = {
        "register_local_var": staticmethod(tape.register_local_source),
        "_hvd_sparse_compression": compression,
        "_hvd_sparse_process_set": options.get("process_set"),
        "_hvd_sparse_local": tape._local_sources,
    }
    if accumulates:
        derive(optimizer, _Agreeing, **local)
    derive(
        inner if accumulates else optimizer,
        _ReducingScaled if is_scaling and not accumulates else _Reducing,
        _allreduce_grads=staticmethod(reduce),
        _hvd_sparse_groups=options.get("groups"),
        **local,
    )
    return optimizer


class _Distributed:
    _allreduce_grads: Reduce
    _hvd_sparse_groups: Option
    _hvd_sparse_compression: Value
    _hvd_sparse_local: Collection[Value]

    def _reduce(self, gradients: Sequence[Value], variables: Sequence[Value]) -> list[Value]:
        refuse_xla()
        values = values_of(variables)
        if isinstance(self._hvd_sparse_groups, list):
            check_names([value.name for value in values])
        with tf.name_scope(SCOPE):
            reduced = self._allreduce_grads(list(gradients), values)
        if isinstance(self._hvd_sparse_compression, TensorflowCompressor):
            local = self._hvd_sparse_local
            pairs = zip(values, reduced)
            sent = [v for v, each in pairs if each is not None and v.ref() not in local]
            self._hvd_sparse_compression.has_reduced(sent)
        # If one of the gradients fails, no variable is changed.
        with tf.control_dependencies([each for each in reduced if each is not None]):
            return [None if each is None else tf.identity(each) for each in reduced]


class _Reducing(_Distributed):
    """Mixin with which an optimizer averages gradients before it clips and applies them. It
    overrides ``_clip_gradients``, because Keras calls this method with all gradients of an update,
    after it has divided them by the loss scale and accumulated them."""

    def apply(self, grads: Sequence[Value], trainable_variables: Value = None) -> None:
        _refuse_inside_scaling(self)
        for variable in trainable_variables or ():
            if getattr(variable, "overwrite_with_gradient", False):
                raise UnsupportedInput(
                    f"variable {variable.name!r} is overwritten by its gradient (float8), and an "
                    "average of such gradients has no meaning: train in another dtype"
                )
        # Bypass Keras, which would track the list.
        object.__setattr__(self, "_hvd_sparse_reduced", False)
        super().apply(grads, trainable_variables)  # type: ignore[misc]
        own: Optimizer = self
        if len(grads) and not (own._hvd_sparse_reduced or own.gradient_accumulation_steps):
            raise UnsupportedInput(
                f"Keras {keras.__version__} applied gradients that were not averaged: "
                f"{type(self).__name__} has its own apply(). Use an optimizer that only overrides "
                "update_step()"
            )

    def _backend_apply_gradients(
        self, grads: Sequence[Value], trainable_variables: Sequence[Value]
    ) -> None:
        object.__setattr__(self, "_hvd_sparse_variables", trainable_variables)
        # Accumulated gradients are averaged in a ``cond``, whose name is in the collectives' names.
        with tf.name_scope(SCOPE):
            super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Value]) -> Sequence[Value]:
        reduced = self._reduce(grads, self._hvd_sparse_variables)  # type: ignore[attr-defined]
        object.__setattr__(self, "_hvd_sparse_reduced", True)
        return super()._clip_gradients(reduced)  # type: ignore[misc,no-any-return]


class _Agreeing(_Distributed):
    """Mixin for a ``LossScaleOptimizer`` that checks gradients which differ between the ranks, for
    example because its inner optimizer accumulates and averages them. After every batch, all ranks
    learn whether the gradients of every rank are finite, so that all skip the same batches."""

    _hvd_sparse_process_set: ProcessSet

    def check_finite(self, grads: Sequence[Value]) -> Value:
        is_finite = super().check_finite(grads)  # type: ignore[misc]
        members = self._hvd_sparse_process_set or hvd.global_process_set
        if not members.included():
            return is_finite
        mine = tf.cast(is_finite, tf.float32)
        name = "HorovodAllreduce_hvd_sparse.is_finite"  # see ``GRAPH_PHASES``
        with tf.name_scope(SCOPE):
            least = hvd.allreduce(mine, op=hvd.Min, name=name, process_set=members)
        return least > 0


class _ReducingScaled(_Agreeing):
    """Mixin with which a ``LossScaleOptimizer`` averages gradients before it checks them for NaN,
    so that all ranks skip the same steps."""

    def apply(self, grads: Sequence[Value], trainable_variables: Value = None) -> None:
        own: Optimizer = self
        given = own._trainable_variables if trainable_variables is None else trainable_variables
        variables = list(given)
        if not own.built:  # the compressor reads the scale before Keras would create it
            own.build(variables)
        super().apply(self._reduce(grads, variables), variables)  # type: ignore[misc]

    def check_finite(self, grads: Sequence[Value]) -> Value:
        # Averages are equal on all ranks, and gradients of local variables are not.
        if self._hvd_sparse_local:
            return super().check_finite(grads)
        return super(_Agreeing, self).check_finite(grads)  # type: ignore[misc]


def _check(optimizer: Optimizer, backward_passes_per_step: int) -> None:
    name = type(optimizer).__name__
    if not is_optimizer_of_keras_3(optimizer):
        raise InvalidOption(
            f"{name} is no optimizer of Keras 3: give a keras.optimizers.Optimizer, or one of "
            "Keras 2 to horovod.tensorflow.keras.DistributedOptimizer"
        )
    if keras.backend.backend() != "tensorflow":
        raise UnsupportedInput(
            f"Keras runs on {keras.backend.backend()} here: set KERAS_BACKEND=tensorflow before "
            "Keras is imported"
        )
    if isinstance(optimizer, _Distributed) or type(optimizer).__module__ == "horovod._keras":
        raise InvalidOption(
            f"the {name} is distributed already: make a new optimizer, and give it to "
            "DistributedOptimizer once"
        )
    if isinstance(inner_of(optimizer), _Distributed):
        raise InvalidOption(f"the optimizer inside the LossScaleOptimizer is distributed: {AROUND}")
    if backward_passes_per_step != 1:
        raise InvalidOption(
            f"backward_passes_per_step is {backward_passes_per_step}: make the optimizer with "
            f"gradient_accumulation_steps={backward_passes_per_step} instead, which averages the "
            "batches (Horovod's option sums them)"
        )


def _refuse_inside_scaling(optimizer: Optimizer) -> None:
    """Raise UnsupportedInput if a ``LossScaleOptimizer`` that ``DistributedOptimizer`` did not wrap
    is calling the optimizer."""
    for caller in (frame.f_locals.get("self") for frame in callers()):
        is_scaling = isinstance(caller, keras.optimizers.LossScaleOptimizer)
        if is_scaling and not isinstance(caller, _Agreeing) and caller.inner_optimizer is optimizer:
            raise UnsupportedInput(
                f"the {type(optimizer).__name__} is inside a LossScaleOptimizer: {AROUND}"
            )
