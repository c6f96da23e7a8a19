"""Identification of the variable that a gradient belongs to.

Horovod's TensorFlow frontends hand a compressor a tensor and no name. The calling frame of Horovod,
however, holds the list of gradients and the list of variables side by side, and the tensor is one
of that list's own objects. So the answer is read off the stack: the same object at position i of
`grads` proves that it is the gradient of `vars[i]`.

What is never used as evidence: the order of the calls over several gradients, names and shapes.
Groups reorder, local layers and `None` gradients are left out, and two models may repeat each
other's names and shapes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import tensorflow as tf

from hvd_sparse.untyped import Report, Value

_HOROVOD = "horovod.tensorflow"
# AutoGraph compiles Horovod's functions anew: the name gets this prefix, the globals stay Horovod's
# own module.
_CONVERTED = "tf__"
_SCALES = ("prescale_factor", "postscale_factor")
_CALLS = "_hvd_sparse_identity_calls"


@dataclass(frozen=True)
class CallSite:
    """A call of ``compress``, as Horovod's frames tell it; None where they do not.

    Attributes
    ----------
    variable : the one whose gradient is handed over
    process_set, op : that Horovod reduces among, and with
    together : the tensors that Horovod hands over before it asks for the first one back, if they
        are several
    gradients, variables : all that Horovod is given at once, side by side, without gradients that
        are None
    scales : what Horovod multiplies with before and after it reduces
    """

    variable: object | None
    process_set: object | None
    op: object | None
    together: object | None = None
    gradients: Sequence[Value] | None = None
    variables: Sequence[Value] | None = None
    scales: tuple[float, float] = (1.0, 1.0)


def find_call_site(tensor: object) -> CallSite:
    """Return what Horovod is about to do with a gradient, and which variable it is of.

    Call it from `compress` itself, in the thread in which Horovod called, and keep `compress` from
    AutoGraph (`tf.autograph.experimental.do_not_convert`), or TensorFlow rewrites all of it. The
    variable belongs to the call being *traced*; a later run of the same trace may be about another
    one: see `runtime_token`.
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
        if (
            together is None
            and isinstance(local.get("tensor_list"), list)
            and len(local["tensor_list"]) > 1
        ):
            together = local["tensor_list"]
        if _function_name(frame) == "allreduce_grads":
            both = _side_by_side(local)
            return CallSite(
                _variable_of(tensor, both, group),
                process_set,
                op,
                together,
                both[0],
                both[1],
                scales,
            )
    return CallSite(None, process_set, op, together, scales=scales)


def runtime_token(variable: Value) -> Value:
    """A string tensor that says, each time the graph runs, which resource the variable really is.

    Horovod reduces inside a `tf.function` that takes the variables as arguments, and TensorFlow
    reuses one trace for all arguments of the same shapes and dtypes: with one compressor for two
    equal models, what was traced for the first runs for the second, and Python is not asked again.
    Only the handle that flows in tells them apart.
    """
    return tf.io.serialize_tensor(variable.handle)


def token_of(variable: Value) -> Value:
    """Return the token of a variable, and an empty one for None.

    An unregistered variable has one, too: TensorFlow numbers the branches of a graph by what is in
    them, and the numbers are part of the collectives' names, so all ranks must build the same
    operations.
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
    """The gradients and the variables of Horovod's frame."""
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
    """How often this very tensor was asked for before, for these positions.

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
        """The position of this variable, or None if it is not one of ours."""
        position = self._by_object.get(id(variable))
        if position is not None:
            return position
        handle = _eager_handle(variable)
        return None if handle is None else self._by_handle.get(id(handle))

    def tokens(self) -> dict[bytes, int]:
        """The positions by the value that `runtime_token` has for their variables when the graph
        runs."""
        with tf.init_scope():
            return {
                bytes(runtime_token(variable).numpy()): position
                for position, variable in enumerate(self.variables)
            }

    def find(self, tensor: object, variable: object | None) -> tuple[int | None, Value]:
        """Return the position of a gradient's variable, and the variable; None for what is unknown.

        Parameters
        ----------
        tensor : the gradient
        variable : as Horovod's frames tell it; None where they do not
        """
        if variable is not None:
            return self.lookup(variable), variable
        position = self.by_unique_shape(tensor)
        return position, None if position is None else self.variables[position]

    def by_unique_shape(self, tensor: object) -> int | None:
        """The position of the only registered variable of this static shape and dtype; None if
        there is none, or more."""
        shape = _static_shape(tensor)
        positions = self._by_shape.get(shape, []) if shape is not None else []
        return positions[0] if len(positions) == 1 else None


def _eager_handle(variable: object) -> object | None:
    """The resource handle outside all graphs, which every wrapper of one variable shares as one
    object."""
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
