"""The variables to compress: from a model, a list or a callable; never TensorFlow 1's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import tensorflow as tf

from hvd_sparse.errors import InvalidOption, UnsupportedInput
from hvd_sparse.tensorflow.keras3 import prefix_of, values_of
from hvd_sparse.types import FLOATS, TensorSpec
from hvd_sparse.untyped import Params, Value

NONE_YET = (
    "there are no variables to compress: give the model itself where its first batch builds it, or "
    "a callable that returns its variables; whatever asks for them before training, as stats() and "
    "save() do, needs model.build() first"
)
GRAPHS_OF_1 = (
    "A compressor keeps its state outside of graphs and needs TensorFlow 2: train with "
    "hvd.DistributedGradientTape or "
    "Keras' fit, without tf.Graph, Session and tf.compat.v1.disable_eager_execution(), or use "
    "hvd.Compression.fp16"
)
MADE_WHILE_TRACED = (
    "a compressor is being made inside a tf.function, whose graph is traced: TensorFlow traces it "
    "again for other arguments, and each time another compressor would begin, without what the "
    "last one kept back. Make it outside, once: compression = Compression.ldte_bs(params, ...) "
    "before the tf.function, which then only uses it"
)


class VariableSource:
    """Variables of a model, a list or a callable, asked for as late as possible: models are often
    built by their first batch.

    Attributes
    ----------
    prefix : of the variables' names, to be left out
    """

    def __init__(self, params: Params) -> None:
        refuse_graphs()
        self._ask, self.prefix = _asker(params), prefix_of(params)

    def variables(self) -> list[tf.Variable]:
        """Return the ``tf.Variable`` objects, also those inside Keras 3's variables.

        Variables that are neither floats nor trained, for example counters and states of random
        generators, are left out.

        Raises
        ------
        InvalidOption : there are none, or one is given twice
        UnsupportedInput : they are TensorFlow 1's
        """
        refuse_tensorflow_1()
        given = list(self._ask())
        variables = values_of(given)
        self.paths = {
            id(value): str(getattr(each, "path", getattr(value, "name", "")))
            for each, value in zip(given, variables)
        }
        for variable in variables:
            _refuse_variable_of_1(variable)
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


def specs_of(variables: Sequence[tf.Variable], prefix: str = "") -> list[TensorSpec]:
    """Return the specs that ranks must agree on; names lose their prefix.

    Variables with the same name, which Keras layers may have, are distinguished by their order.
    """
    seen: Counter[str] = Counter()
    specs = []
    for variable in variables:
        name = variable.name.removeprefix(prefix)
        seen[name] += 1
        key = name if seen[name] == 1 else f"{name}#{seen[name]}"
        if not variable.shape.is_fully_defined():
            raise UnsupportedInput(
                f"variable {key!r} has shape {variable.shape}: give it a shape without unknown "
                "dimensions"
            )
        specs.append(
            TensorSpec(key, tuple(variable.shape.as_list()), tf.as_dtype(variable.dtype).name)
        )
    return specs


def refuse_graphs() -> None:
    """Raise UnsupportedInput in TensorFlow 1's graphs, InvalidOption while a function is traced."""
    refuse_tensorflow_1()
    if not tf.executing_eagerly():
        raise InvalidOption(MADE_WHILE_TRACED)


def refuse_tensorflow_1() -> None:
    """Raise UnsupportedInput in a graph of TensorFlow 1, whose variables have no value until a
    session runs.

    ``tf.init_scope`` leaves the graphs that functions are traced into, and no others.
    """
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise UnsupportedInput(f"this is a graph of TensorFlow 1. {GRAPHS_OF_1}")


def _refuse_variable_of_1(variable: Value) -> None:
    """Refuse a TensorFlow 1 variable, also outside its graph, because a program may keep
    variables."""
    graph = getattr(variable, "graph", None)
    if graph is not None and not graph.building_function:
        raise UnsupportedInput(
            f"variable {variable.name!r} is in a graph of TensorFlow 1. {GRAPHS_OF_1}"
        )


def _asker(params: Params) -> Callable[[], Sequence[tf.Variable]]:
    def of_model() -> Sequence[tf.Variable]:
        try:
            return params.trainable_variables  # type: ignore[no-any-return]
        except ValueError as error:  # raised by Keras models that are not built
            raise InvalidOption(f"{NONE_YET}. {error}") from error

    if hasattr(type(params), "trainable_variables"):  # of the class: an unbuilt model's own raises
        return of_model
    if callable(params):
        return params  # type: ignore[no-any-return]
    if isinstance(params, (str, bytes)) or not hasattr(params, "__iter__"):
        raise InvalidOption(
            f"{params!r} has no variables: give a model, model.trainable_variables, or a callable"
        )
    variables = list(params)
    if not variables:  # and there never will be any: Keras' list of an unbuilt model is empty
        raise InvalidOption(NONE_YET)
    return lambda: variables
