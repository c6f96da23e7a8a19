"""Local steps: each rank trains alone, and the ranks average their progress every few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import broadcast_variables, hvd
from hvd_sparse.composition import PLANNED
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.compressor import Compressor
from hvd_sparse.frontend.local_steps import LocalStepsBase, refuse_unfrozen
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.variables import VariableSource
from hvd_sparse.types import Params, Report


class LocalSteps(LocalStepsBase):
    """Exchanges compressed changes of the variables every few steps of a local optimizer.

    The anchors are the variables' values after the last exchange. An exchange averages the ranks'
    changes since then, and makes the outer step: an SGD step of the anchors, with the average as
    gradient. ``hvd_sparse.torch.LocalSteps`` explains the method, frozen parameters and the papers'
    settings. With TensorFlow, the program runs the local optimizer by itself, and calls ``advance``
    after each of its steps, outside of ``tf.function``.

    Parameters
    ----------
    variables : a built model, its trained variables, or a callable that returns them
    compression : function of a list of variables that makes the compressor, for example
        ``functools.partial(Compression.topk, density=1 / 64)``; not with groups="planned".
        ``hvd_sparse.torch.LocalSteps`` lists further compressors that cannot be used
    every : number of local steps between two exchanges
    outer_lr, outer_momentum, nesterov : settings of SGD in the outer step

    Notes
    -----
    The constructor is collective: it broadcasts the trained variables of the lowest rank, so that
    all ranks start from the same anchors; broadcast frozen ones yourself. If a layer is unfrozen
    later, the next exchange raises InvalidOption, provided that a model or a callable was given.
    The compressor's process set, if it has one, has the ranks that train together.

    Paper: sarfi2025sparseloco, douillard2023diloco.

    Examples
    --------
    ::

        local = LocalSteps(model, compression=partial(Compression.topk, density=1 / 64), every=16)
        for inputs, targets in batches:
            train_step(inputs, targets)   # a tape and an optimizer of the rank's own
            local.advance()
        local.exchange()
    """

    def __init__(
        self,
        variables: Params,
        *,
        compression: Callable[..., TensorflowCompressor],
        every: int,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(compression, every, outer_lr, outer_momentum, nesterov)
        if not tf.executing_eagerly():
            raise InvalidOption(
                "LocalSteps is made inside of tf.function: make it once, before the training"
            )
        self._lr, self._momentum, self._nesterov = outer_lr, outer_momentum, nesterov
        self._source = VariableSource(variables)
        self._variables = self._source.variables()
        # Leave out the model's name, as in compressors: a loaded Keras 3 model has another.
        prefix = self._source.prefix
        names = [v.name.removeprefix(prefix).partition(":")[0] for v in self._variables]
        self._anchors = [
            tf.Variable(tf.identity(v), name=name) for v, name in zip(self._variables, names)
        ]
        self._velocities = [
            tf.Variable(tf.zeros_like(v), name=f"{name}/velocity")
            for v, name in zip(self._variables, names)
            if outer_momentum
        ]
        self._take(compression(self._anchors))
        # Horovod's compressors have no process set.
        members = getattr(self.compressor, "process_set", hvd.global_process_set)
        self._process_set = members
        if members.included():
            broadcast_variables(self._variables, min(members.ranks or [0]), members)
        for anchor, variable in zip(self._anchors, self._variables):
            anchor.assign(variable)
        self._run: Any = tf.function(self._reduce)

    def _take(self, compressor: Compressor) -> None:
        super()._take(compressor)
        if isinstance(compressor, Compressor) and compressor.configuration.groups == PLANNED:
            compressor.close()
            raise InvalidOption(
                f"groups is {PLANNED!r}, but the graph of LocalSteps cannot change its groups: "
                "leave groups out"
            )

    def _exchange(self) -> None:
        known = {variable.ref() for variable in self._variables}
        for variable in self._source.variables():
            if variable.ref() not in known:
                refuse_unfrozen(f"variable {variable.name!r}")
        self._run()

    def _reduce(self) -> None:
        moved = [anchor - variable for anchor, variable in zip(self._anchors, self._variables)]
        tape = hvd.DistributedGradientTape(
            tf.GradientTape(), compression=self.compressor, process_set=self._process_set
        )
        reduced = tape._allreduce_grads(moved, self._anchors)
        with tf.control_dependencies(reduced):  # if one of them fails, no anchor is changed
            reduced = [tf.identity(direction) for direction in reduced]
        for position, (anchor, direction) in enumerate(zip(self._anchors, reduced)):
            if self._velocities:  # as torch's SGD
                velocity, momentum = self._velocities[position], self._momentum
                velocity.assign(momentum * velocity + direction)
                direction = direction + momentum * velocity if self._nesterov else velocity
            anchor.assign_sub(self._lr * direction)
        for anchor, variable in zip(self._anchors, self._variables):
            variable.assign(anchor)

    def state_dict(self) -> Report:
        """Return this rank's state, without the model and the local optimizer.

        taken : number of local steps since the last exchange
        anchors : the variables' values after the last exchange, in the order of the variables
        velocities : momentum of the outer step, in the same order; empty without ``outer_momentum``
        compressor : the compressor's state; None for ``Compression.nothing`` and Horovod's
            compressors, which have no state
        """
        return {
            "taken": self.taken,
            "anchors": [anchor.numpy() for anchor in self._anchors],
            "velocities": [velocity.numpy() for velocity in self._velocities],
            "compressor": self._state_of_compressor(),
        }

    def load_state_dict(self, state: Report) -> None:
        """Load this rank's ``state_dict()``; load the model and the local optimizer separately.

        Raises
        ------
        InvalidOption : the state has other variables, or only one of the state and this object has
            an outer momentum, or a compressor with a state
        RankMismatch : the state has another configuration
        """
        if bool(state["velocities"]) != bool(self._velocities):
            raise InvalidOption(
                f"this state has {len(state['velocities'])} velocities, and outer_momentum is "
                f"{self._momentum}: make LocalSteps with the outer_momentum of the run that saved "
                "the state"
            )
        shapes = [tuple(anchor.shape) for anchor in self._anchors]
        saved = [anchor.shape for anchor in state["anchors"]]
        if saved != shapes:
            raise InvalidOption(
                f"this state has anchors of the shapes {saved}, but the variables have {shapes}: "
                "load the state into the same model"
            )
        self._load_compressor(state["compressor"])
        self.taken = state["taken"]
        for kept, name in ((self._anchors, "anchors"), (self._velocities, "velocities")):
            for variable, value in zip(kept, state[name]):
                variable.assign(value)
