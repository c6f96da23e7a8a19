"""The variables to compress: from a model, a list or a callable, and never Keras 3's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from hvd_sparse.errors import InvalidOption, UnsupportedInput
from hvd_sparse.types import TensorSpec

WAY_OUT = (
    "Horovod's wrappers do not know Keras 3: its Keras optimizer trains without averaging "
    "anything, in silence. "
    "pip install tf-keras, and set TF_USE_LEGACY_KERAS=1 in the environment before TensorFlow is "
    "imported"
)


class VariableSource:
    """Where the variables come from.  Asked as late as possible: models are often built by their
    first batch."""

    def __init__(self, params: Any) -> None:
        _refuse_keras_3(params)
        self._ask = _asker(params)

    def variables(self) -> list[tf.Variable]:
        """The variables, now; InvalidOption if there are none, or one is given twice."""
        variables = list(self._ask())
        for variable in variables:
            _refuse_keras_3(variable)
            if not isinstance(variable, tf.Variable):
                raise InvalidOption(
                    f"{variable!r} is no tf.Variable: give a model, model.trainable_variables, or "
                    "a callable"
                )
        if not variables:
            raise InvalidOption(
                "there are no variables to compress: give a model, or a callable that returns its "
                "trainable variables, "
                "where the model is built only by its first batch"
            )
        twice = [
            ref.deref().name
            for ref, count in Counter(v.ref() for v in variables).items()
            if count > 1
        ]
        if twice:
            raise InvalidOption(f"variable {twice[0]!r} is given twice: give each variable once")
        return variables


def specs_of(variables: Sequence[tf.Variable]) -> list[TensorSpec]:
    """What ranks must agree on; variables of one name are told apart by their order, as Keras
    layers may share names."""
    seen: Counter[str] = Counter()
    specs = []
    for variable in variables:
        seen[variable.name] += 1
        key = (
            variable.name if seen[variable.name] == 1 else f"{variable.name}#{seen[variable.name]}"
        )
        if not variable.shape.is_fully_defined():
            raise UnsupportedInput(
                f"variable {key!r} has shape {variable.shape}: give it a shape without unknown "
                "dimensions"
            )
        specs.append(
            TensorSpec(key, tuple(variable.shape.as_list()), tf.as_dtype(variable.dtype).name)
        )
    return specs


def _asker(params: Any) -> Callable[[], Sequence[tf.Variable]]:
    if hasattr(type(params), "trainable_variables"):  # of the class: an unbuilt model's own raises
        return lambda: params.trainable_variables
    if callable(params):
        return params  # type: ignore[no-any-return]
    if isinstance(params, (str, bytes)) or not hasattr(params, "__iter__"):
        raise InvalidOption(
            f"{params!r} has no variables: give a model, model.trainable_variables, or a callable"
        )
    variables = list(params)
    return lambda: variables


def _refuse_keras_3(thing: Any) -> None:
    """Keras 3 never calls a compressor, so it must be refused before training, not in it."""
    things = thing if isinstance(thing, (list, tuple)) else [thing]
    modules = {cls.__module__.split(".")[0] for item in things for cls in type(item).__mro__}
    if "keras" in modules:
        raise UnsupportedInput(f"these variables are of Keras 3. {WAY_OUT}")
    if callable(thing) and not hasattr(type(thing), "trainable_variables") and is_keras_3():
        raise UnsupportedInput(
            "tf.keras is Keras 3 here, and what a callable will return cannot be known. "
            f"{WAY_OUT}; "
            "without Keras, give the list of variables itself"
        )


def is_keras_3() -> bool:
    """Whether ``tf.keras`` is Keras 3 in this process."""
    version = getattr(tf.keras, "__version__", "2")
    return int(str(version).split(".")[0]) >= 3
