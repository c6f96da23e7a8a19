"""Identification of the variable that a gradient belongs to, and refusals while a graph is traced.

Horovod's TensorFlow frontends pass a compressor a tensor without a name. Horovod's calling frame,
however, holds the lists of gradients and variables side by side, and the tensor is an object of the
first list. So the same object at position i of `grads` proves that it is the gradient of `vars[i]`.

Order of calls, names and shapes are never used as evidence, because groups reorder, local layers
and `None` gradients are left out, and two models may share names and shapes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import hvd
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import (
    InvalidOption,
    RankMismatch,
    UnknownGradient,
    UnsupportedInput,
    UnsupportedReduction,
)
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import ProcessSet, Report, Value

_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
_HOROVOD = "horovod.tensorflow"
# AutoGraph compiles Horovod's functions anew: the name gets this prefix, the globals stay Horovod's
# own module.
_CONVERTED = "tf__"
_SCALES = ("prescale_factor", "postscale_factor")
_CALLS = "_hvd_sparse_identity_calls"


@dataclass(frozen=True)
class CallSite:
    """A call of ``compress``, as read from Horovod's frames; a field is None if they do not have
    it.

    Attributes
    ----------
    variable : the gradient's variable
    process_set, op : ranks and operation of the reduction
    together : the tensors of Horovod's group, if there are several
    gradients, variables : all of Horovod's current call, side by side, without gradients that are
        None
    scales : Horovod's factors before and after the reduction
    """

    variable: object | None
    process_set: object | None
    op: object | None
    together: object | None = None
    gradients: Sequence[Value] | None = None
    variables: Sequence[Value] | None = None
    scales: tuple[float, float] = (1.0, 1.0)


def find_call_site(tensor: object) -> CallSite:
    """Return Horovod's current call and the variable of its gradient.

    Call it from `compress` itself, in Horovod's calling thread, and exclude `compress` from
    AutoGraph (`tf.autograph.experimental.do_not_convert`), because TensorFlow would rewrite it. The
    variable belongs to the call being *traced*; a later run of the trace may be for another
    variable: see `runtime_token`.
    """
    process_set: object | None = None
    op: object | None = None
    group: list[int] | None = None
    together: list[object] | None = None
    scales = (1.0, 1.0)
    for frame in _horovod_frames(sys._getframe(1)):
        local = frame.f_locals
        # AutoGraph fills locals that are not set yet with marker objects, so a name alone proves
        # nothing.
        if process_set is None and hasattr(local.get("process_set"), "process_set_id"):
            process_set = local["process_set"]
        if op is None and isinstance(local.get("op"), int):
            op = local["op"]
        if all(isinstance(local.get(name), float) for name in _SCALES):
            scales = (local[_SCALES[0]], local[_SCALES[1]])
        if group is None and isinstance(local.get("index_group"), list):
            group = local["index_group"]
        tensors = local.get("tensor_list")
        if together is None and isinstance(tensors, list) and len(tensors) > 1:
            together = tensors
        if _function_name(frame) == "allreduce_grads":
            both = _side_by_side(local)
            variable = _variable_of(tensor, both, group)
            return CallSite(variable, process_set, op, together, both[0], both[1], scales)
    return CallSite(None, process_set, op, together, scales=scales)


def runtime_token(variable: Value) -> Value:
    """Return a string tensor that names the variable's resource each time the graph runs.

    Horovod reduces inside a `tf.function` with the variables as arguments, and TensorFlow reuses
    one trace for all arguments of the same shapes and dtypes. So with one compressor for two equal
    models, the trace of the first runs for the second, without Python. Only the variable's handle,
    an input, tells them apart.
    """
    return tf.io.serialize_tensor(variable.handle)


def token_of(variable: Value) -> Value:
    """Return the token of a variable, or an empty one for None.

    An unregistered variable has a token too, because all ranks must build the same operations:
    TensorFlow numbers a graph's branches by their content, and the numbers are part of the
    collectives' names.
    """
    return tf.constant(b"") if variable is None else runtime_token(variable)


def _horovod_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if frame.f_globals.get("__name__") == _HOROVOD:
            yield frame
        frame = frame.f_back


def _function_name(frame: FrameType) -> str:
    name = frame.f_code.co_name
    return name[len(_CONVERTED) :] if name.startswith(_CONVERTED) else name


def _side_by_side(local: Report) -> tuple[Sequence[Value], Sequence[Value]] | tuple[None, None]:
    gradients, variables = local.get("grads"), local.get("vars")
    if not isinstance(gradients, (list, tuple)) or not isinstance(variables, (list, tuple)):
        return None, None
    return (gradients, variables) if len(gradients) == len(variables) else (None, None)


def _variable_of(
    tensor: object, both: tuple[Value, Value], group: list[int] | None
) -> object | None:
    gradients, variables = both
    if gradients is None:
        return None
    positions = range(len(gradients)) if group is None else group
    owners = tuple(i for i in positions if gradients[i] is tensor)
    if not owners:
        return None
    turn = _times_asked(tensor, owners) % len(owners) if len(owners) > 1 else 0
    return variables[owners[turn]]  # type: ignore[no-any-return]


def _times_asked(tensor: object, owners: tuple[int, ...]) -> int:
    """Return how often this tensor was asked for before, for these positions.

    The gradient of `a + b` is one object for both, so identity leaves several owners, all of them
    proven. Horovod asks once for each, in list order, and hence the n-th time means the n-th owner.
    The count lives on the tensor and so ends with its graph; an id would be reused.
    """
    calls = getattr(tensor, _CALLS, None)
    if calls is None:
        calls = {}
        setattr(tensor, _CALLS, calls)
    calls[owners] = calls.get(owners, -1) + 1
    return int(calls[owners])


class VariableIndex:
    """Finds the position of a variable, also where TensorFlow passes another object that wraps the
    same resource.

    Attributes
    ----------
    variables : in the order of their positions
    """

    def __init__(self, variables: Sequence[Value]) -> None:
        # The variables are held (and hold their handles), so that no id in these tables comes to
        # mean another object.
        self.variables = list(variables)
        self._by_object: dict[int, int] = {}
        self._by_handle: dict[int, int] = {}
        self._by_shape: dict[tuple[Value, ...], list[int]] = {}
        for position, variable in enumerate(self.variables):
            self._by_object[id(variable)] = position
            handle = _eager_handle(variable)
            if handle is not None:
                self._by_handle[id(handle)] = position
            shape = _static_shape(variable)
            if shape is not None:
                self._by_shape.setdefault(shape, []).append(position)

    def lookup(self, variable: object) -> int | None:
        """Return the variable's position, or None if it is not registered."""
        position = self._by_object.get(id(variable))
        if position is not None:
            return position
        handle = _eager_handle(variable)
        return None if handle is None else self._by_handle.get(id(handle))

    def tokens(self) -> dict[bytes, int]:
        """Return the positions by the variables' `runtime_token`s."""
        with tf.init_scope():
            return {
                bytes(runtime_token(variable).numpy()): position
                for position, variable in enumerate(self.variables)
            }

    def find(self, tensor: object, variable: object | None) -> tuple[int | None, Value]:
        """Return the position of a gradient's variable, and the variable; None if it is unknown.

        Parameters
        ----------
        tensor : the gradient
        variable : from Horovod's frames; None if they do not have it: then the only registered
            variable of this static shape and dtype counts, if there is just one
        """
        if variable is not None:
            return self.lookup(variable), variable
        shape = _static_shape(tensor)
        positions = [] if shape is None else self._by_shape.get(shape, [])
        if len(positions) != 1:
            return None, None
        return positions[0], self.variables[positions[0]]


def _eager_handle(variable: object) -> object | None:
    """Return the resource handle outside all graphs, the same object for every wrapper of a
    variable."""
    handle: object | None = getattr(variable, "handle", None)
    while handle is not None:
        graph = getattr(handle, "graph", None) if not hasattr(handle, "numpy") else None
        if graph is None:
            return handle
        # Inside a traced function a handle may be the graph's stand-in; the graph records what it
        # stands for.
        captures = getattr(graph, "captures", ())
        handle = next((outside for outside, inside in captures if inside is handle), None)
    return None


def _static_shape(value: Value) -> tuple[Value, ...] | None:
    shape = getattr(value, "shape", None)
    if shape is None or not shape.is_fully_defined():
        return None
    return (tuple(shape.as_list()), value.dtype.name)


def check_reduction(site: CallSite, process_set: ProcessSet) -> None:
    """Check Horovod's operation and its ranks.

    Raises
    ------
    UnsupportedReduction : the operation is neither sum nor average
    RankMismatch : the ranks are not the compressor's
    """
    if site.op is not None and site.op not in (hvd.Average, hvd.Sum):
        raise UnsupportedReduction(
            "Horovod's op is neither hvd.Average nor hvd.Sum, which alone can be restored: use one"
        )
    theirs = site.process_set
    if theirs is not None and theirs.process_set_id != process_set.process_set_id:  # type: ignore[attr-defined]
        raise RankMismatch(
            f"the compressor's process set is {process_set}, Horovod's is {theirs}: give "
            "process_set= to both"
        )


def refuse_xla() -> None:
    """Raise UnsupportedInput where the graph that is being traced will be compiled by XLA.

    TensorFlow would say so at the first step, in words about operations that no user has written.
    """
    frame: Value = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _FUNCTIONS and getattr(
            frame.f_locals.get("self"), "_jit_compile", None
        ):
            raise UnsupportedInput(
                "the training step is to be compiled by XLA, which knows no collectives of "
                "Horovod: say model.compile(..., jit_compile=False), as Keras 3 turns it on by "
                "itself where there is a GPU, or leave jit_compile=True out of tf.function"
            )
        frame = frame.f_back


def spec_of_unknown(
    tensor: tf.Tensor, variable: object | None, configuration: Configuration
) -> TensorSpec:
    """Return a placeholder for a gradient without a registered variable.

    Compressing it fails, on all ranks.

    Raises
    ------
    UnknownGradient : it would go dense, so it has no carrier to inform the other ranks
    """
    name = getattr(variable, "name", "of unknown name")
    if tensor.shape.is_fully_defined():
        spec = TensorSpec(name, tuple(tensor.shape.as_list()), tensor.dtype.name)
        if configuration.is_sparse(spec.shape, spec.numel):
            return spec
    raise UnknownGradient(
        f"the gradient of the variable {name!r}, of shape {tensor.shape}, has no registered "
        "variable: give the compressor all variables that the tape or optimizer has (outside "
        "of hvd.DistributedGradientTape and hvd.DistributedOptimizer, only shapes that are "
        "unique are known)"
    )


def check_names(names: Sequence[str]) -> None:
    """Raise InvalidOption where Horovod, which groups by name, would drop a gradient."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidOption(
            f"two variables are called {twice[0]!r}, and Horovod tells those of groups apart by "
            "name: give the layers names of their own, or groups= a number"
        )
