"""Finds the variables to compress, and the variable of each gradient.

Horovod passes a gradient without its variable; the calling frame of Horovod has lists of both,
`grads` and `vars`, in the same order. A variable cannot be found from the order of calls, names or
shapes: groups change the order, gradients may be missing, and models may be alike.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import hvd
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption, UnknownGradient, UnsupportedInput
from hvd_sparse.frontend.compressor import check_call
from hvd_sparse.types import FLOATS, Params, ProcessSet, Report, TensorSpec, Value

NONE_YET = (
    "there are no variables to compress: give the model itself if its first batch builds it, or "
    "a callable that returns its variables; before training, stats() and save() need "
    "model.build() first"
)
GRAPHS_OF_1 = (
    "A compressor keeps its state outside of graphs and needs TensorFlow 2: train with "
    "hvd.DistributedGradientTape or Keras' fit, without tf.Graph, Session and "
    "tf.compat.v1.disable_eager_execution(), or use hvd.Compression.fp16"
)
FUNCTIONS = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
SAVING = "tensorflow.python.saved_model.save"
SCALES = ("prescale_factor", "postscale_factor")
CALLS = "_hvd_sparse_identity_calls"


def value_of(variable: Value) -> Value:
    """Return the ``tf.Variable`` of a Keras 3 variable, or ``variable`` itself."""
    held = getattr(variable, "value", None)
    return held if isinstance(held, tf.Variable) else variable


def values_of(variables: Iterable[Value]) -> list[Value]:
    """Return the ``tf.Variable`` of each Keras 3 variable, also in nested lists."""
    return [values_of(v) if isinstance(v, (list, tuple)) else value_of(v) for v in variables]


class VariableSource:
    """The variables to compress: a list, a callable, or a model, which may be built later."""

    def __init__(self, params: Params) -> None:
        refuse_tensorflow_1()
        if not tf.executing_eagerly():
            raise InvalidOption(
                "a compressor is being made inside a tf.function, whose graph is traced: "
                "TensorFlow traces it again for other arguments, and would make another compressor "
                "each time, without the residual of the last one. Make it outside, once: "
                "compression = Compression.ldte_bs(params, ...) before the tf.function, which then "
                "only uses it"
            )
        self._params = params
        # Look at the class, because an unbuilt model raises an error.
        self._is_model = hasattr(type(params), "trainable_variables")
        if not (self._is_model or callable(params)):
            if isinstance(params, (str, bytes)) or not hasattr(params, "__iter__"):
                raise InvalidOption(
                    f"{params!r} has no variables: give a model, model.trainable_variables, or a "
                    "callable"
                )
            self._params = list(params)
            if not self._params:  # the list of an unbuilt model stays empty
                raise InvalidOption(NONE_YET)
        # Names of Keras 3's variables begin with the model's name, except in a loaded model.
        self.prefix = f"{params.name}/" if hasattr(type(params), "stateless_call") else ""

    def variables(self) -> list[tf.Variable]:
        """Return the ``tf.Variable`` objects, without counters (integers, not trainable)."""
        refuse_tensorflow_1()
        given = list(self._ask())
        variables = values_of(given)
        self.paths = {
            id(value): str(getattr(each, "path", getattr(value, "name", "")))
            for each, value in zip(given, variables)
        }
        for variable in variables:
            graph = getattr(variable, "graph", None)
            if graph is not None and not graph.building_function:
                raise UnsupportedInput(
                    f"variable {variable.name!r} is in a graph of TensorFlow 1. {GRAPHS_OF_1}"
                )
            if not isinstance(variable, tf.Variable):
                raise InvalidOption(
                    f"{variable!r} is no tf.Variable: give a model, model.trainable_variables, or "
                    "a callable"
                )
        variables = [v for v in variables if v.trainable or tf.as_dtype(v.dtype).name in FLOATS]
        if not variables:
            raise InvalidOption(NONE_YET)
        for ref, count in Counter(v.ref() for v in variables).items():
            if count > 1:
                name = ref.deref().name
                raise InvalidOption(f"variable {name!r} is given twice: give each variable once")
        return variables

    def _ask(self) -> Iterable[Value]:
        if not self._is_model:
            return self._params() if callable(self._params) else self._params  # type: ignore[no-any-return]
        try:
            return self._params.trainable_variables  # type: ignore[no-any-return]
        except ValueError as error:  # raised by Keras models that are not built
            raise InvalidOption(f"{NONE_YET}. {error}") from error

    def specs(self, variables: Sequence[tf.Variable]) -> list[TensorSpec]:
        """Return the specs of variables. A number is added to repeated names, as in "kernel#2"."""
        seen: Counter[str] = Counter()
        specs = []
        for variable in variables:
            name = variable.name.removeprefix(self.prefix)
            seen[name] += 1
            key = name if seen[name] == 1 else f"{name}#{seen[name]}"
            if not variable.shape.is_fully_defined():
                raise UnsupportedInput(
                    f"variable {key!r} has shape {variable.shape}: give it a shape without unknown "
                    "dimensions"
                )
            shape, dtype = tuple(variable.shape.as_list()), tf.as_dtype(variable.dtype).name
            specs.append(TensorSpec(key, shape, dtype))
        return specs


def refuse_tensorflow_1() -> None:
    """Raise UnsupportedInput in a graph of TensorFlow 1, whose variables have no values yet."""
    with tf.init_scope():  # leaves only the graphs of traced functions
        if not tf.executing_eagerly():
            raise UnsupportedInput(f"this is a graph of TensorFlow 1. {GRAPHS_OF_1}")


def check_names(names: Sequence[str]) -> None:
    """Raise InvalidOption for equal names: Horovod finds gradients by name, and would drop one."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidOption(
            f"two variables are called {twice[0]!r}, and Horovod identifies the variables of a "
            "group by name: give the layers different names, or a number as groups="
        )


@dataclass
class CallSite:
    """Describes the call of Horovod that led to a call of ``compress``, by values of local
    variables of Horovod's functions. Values that are not found are None, ``scales`` (1.0, 1.0).

    op : reduction of Horovod's call
    variable : the variable of the gradient
    together : the tensors of the gradient's group; None for a gradient without a group
    gradients, variables : all gradients and variables of Horovod's call, in the same order
    scales : the factors that Horovod applies before and after the reduction
    """

    variable: object | None = None
    op: object | None = None
    together: object | None = None
    gradients: Sequence[Value] | None = None
    variables: Sequence[Value] | None = None
    scales: tuple[float, float] = (1.0, 1.0)

    def place(self, tensor: object, local: Report, group: list[int] | None) -> None:
        """Find the variable of the gradient ``tensor`` in Horovod's lists of gradients and
        variables. ``group`` lists the positions to search; None stands for all.

        One tensor may be the gradient of several variables, as in `a + b`. Horovod then passes the
        tensor once for each of these variables, in the order of the list. So the calls are counted
        in an attribute of the tensor, and the n-th call finds the n-th variable.
        """
        gradients, variables = local.get("grads"), local.get("vars")
        if not isinstance(gradients, (list, tuple)) or not isinstance(variables, (list, tuple)):
            return
        if len(gradients) != len(variables):
            return
        self.gradients, self.variables = gradients, variables
        positions = range(len(gradients)) if group is None else group
        owners = tuple(i for i in positions if gradients[i] is tensor)
        if len(owners) > 1:
            calls = getattr(tensor, CALLS, Counter())
            self.variable = variables[owners[calls[owners] % len(owners)]]
            calls[owners] += 1
            setattr(tensor, CALLS, calls)
        elif owners:
            self.variable = variables[owners[0]]


def find_call_site(tensor: object, process_set: ProcessSet) -> CallSite:
    """Return a description of the call of Horovod that led to this call of ``compress``. Raises an
    error if no compressor can serve this call. Its ``variable`` is the one found while the graph is
    traced; the graph may later run with another variable (see `runtime_token`)."""
    refuse_tensorflow_1()
    refuse_xla()
    _refuse_replicas()
    site = CallSite()
    theirs: ProcessSet = None
    group: list[int] | None = None
    for frame in callers():
        if frame.f_globals.get("__name__") != "horovod.tensorflow":
            continue
        local = frame.f_locals
        # AutoGraph fills unset locals with marker objects, so types are checked as well.
        if theirs is None and hasattr(local.get("process_set"), "process_set_id"):
            theirs = local["process_set"]
        if site.op is None and isinstance(local.get("op"), int):
            site.op = local["op"]
        if all(isinstance(local.get(name), float) for name in SCALES):
            site.scales = (local[SCALES[0]], local[SCALES[1]])
        if group is None and isinstance(local.get("index_group"), list):
            group = local["index_group"]
        tensors = local.get("tensor_list")
        if site.together is None and isinstance(tensors, list) and len(tensors) > 1:
            site.together = tensors
        # AutoGraph compiles Horovod's functions again, with "tf__" before their names.
        if frame.f_code.co_name.removeprefix("tf__") == "allreduce_grads":
            site.place(tensor, local, group)
            break
    op = hvd.Average if site.op is None else site.op
    check_call(hvd, op, process_set, process_set if theirs is None else theirs)
    return site


def runtime_token(variable: Value) -> Value:
    """Return a string tensor that identifies the variable when the graph runs. It is empty if
    ``variable`` is None, or a tensor that a tape watches in place of a variable.

    The variable that is found while tracing does not suffice. Horovod reduces inside a
    `tf.function` with the variables as arguments, so TensorFlow may reuse the trace for another
    model with equal shapes. Variables that the compressor does not know get tokens too, so that all
    ranks build equal branches: the names of collectives depend on the contents of branches.
    """
    handle = getattr(variable, "handle", None)
    return tf.constant(b"") if handle is None else tf.io.serialize_tensor(handle)


class VariableIndex:
    """Finds the position of a variable in the compressor's list. The variable may be given by
    another object that wraps the same memory, for example in a traced function."""

    def __init__(self, variables: Sequence[Value]) -> None:
        # The list keeps the variables' handles alive, so that no id is used again.
        self.variables = list(variables)
        self._by_handle = {id(_eager_handle(v)): i for i, v in enumerate(self.variables)}

    def lookup(self, variable: object) -> int | None:
        handle = _eager_handle(variable)
        return None if handle is None else self._by_handle.get(id(handle))

    def tokens(self) -> dict[bytes, int]:
        with tf.init_scope():
            return {bytes(runtime_token(v).numpy()): i for i, v in enumerate(self.variables)}

    def find(self, tensor: tf.Tensor, variable: object | None) -> tuple[int | None, Value]:
        """Return the position of a gradient's variable in the compressor's list (None if unknown),
        and the variable. If ``variable`` is None, find the only one with this shape and dtype."""
        if variable is not None:
            return self.lookup(variable), variable
        kind = tensor.shape, tensor.dtype.name
        alike = [(i, v) for i, v in enumerate(self.variables) if (v.shape, v.dtype.name) == kind]
        return alike[0] if len(alike) == 1 else (None, None)


def _eager_handle(variable: object) -> object | None:
    """Return a variable's handle, TensorFlow's reference to its memory, as it is outside of graphs.
    All objects that wrap the variable share this handle."""
    handle: object | None = getattr(variable, "handle", None)
    while handle is not None and not hasattr(handle, "numpy"):
        graph = getattr(handle, "graph", None)
        if graph is None:
            break
        # A graph that is being traced has captured the handle from outside.
        captures = getattr(graph, "captures", ())
        handle = next((outside for outside, inside in captures if inside is handle), None)
    return handle


def spec_of_unknown(
    tensor: tf.Tensor, variable: object | None, configuration: Configuration
) -> TensorSpec:
    """Return a spec for the gradient of a variable that the compressor does not know, so that its
    compression fails on all ranks together. Raises UnknownGradient if the tensor's shape is unknown
    or it would not be compressed, because then no array can report the error to other ranks."""
    name = getattr(variable, "name", "of unknown name")
    if tensor.shape.is_fully_defined():
        spec = TensorSpec(name, tuple(tensor.shape.as_list()), tensor.dtype.name)
        if configuration.is_sparse(spec.shape, spec.numel):
            return spec
    raise UnknownGradient(
        f"the gradient of the variable {name!r}, of shape {tensor.shape}, has no registered "
        "variable: give the compressor all variables that the tape or optimizer has (outside of "
        "hvd.DistributedGradientTape and hvd.DistributedOptimizer, a gradient is recognized only "
        "if its shape is unique)"
    )


def callers() -> Iterator[Value]:
    frame: Value = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_exporting() -> bool:
    """Return whether TensorFlow is writing a SavedModel. It then traces Horovod's functions again
    with placeholders instead of variables, and these traces never run."""
    return any(frame.f_globals.get("__name__") == SAVING for frame in callers())


def refuse_xla() -> None:
    """Raise UnsupportedInput if XLA compiles the graph, because XLA's error gives no reason."""
    for frame in callers():
        if frame.f_globals.get("__name__") == FUNCTIONS and getattr(
            frame.f_locals.get("self"), "_jit_compile", None
        ):
            raise UnsupportedInput(
                "XLA is about to compile the training step, but cannot compile collectives of "
                "Horovod: give model.compile(..., jit_compile=False), because Keras 3 turns it "
                "on by itself if there is a GPU, or leave jit_compile=True out of tf.function"
            )


def _refuse_replicas() -> None:
    """Raise UnsupportedInput in a ``tf.distribute`` strategy with several replicas, because all
    replicas of a process would send their gradients through one compressor."""
    strategy = tf.distribute.get_strategy()
    if (count := strategy.num_replicas_in_sync) > 1:
        raise UnsupportedInput(
            f"this step runs on {count} replicas of {type(strategy).__name__}, and a compressor "
            "belongs to one: leave tf.distribute out, and start one process for each device, as in "
            f"horovodrun -np {count}"
        )
