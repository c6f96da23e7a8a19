"""Worker for one rank: input that is refused.

Argument: "2" or "3", the version of Keras, or "graphs" for a program that has left TensorFlow 2's
eager execution.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "0" if sys.argv[1] == "3" else "1"

import tensorflow as tf
from _common import run_cases
from _tensorflow_cases import Compression, begin, hvd, linear_loss, outcome_of, tape_gradients


def weight(name: str = "weight", dtype: Any = tf.float32) -> Any:
    return tf.Variable(tf.ones((40, 40), dtype), name=name)


def unbuilt_model() -> Any:
    return tf.keras.Sequential([tf.keras.layers.Dense(2)])


def keras_model() -> Any:
    model = unbuilt_model()
    model.build((None, 3))
    return model


def made_with(params: Callable[[], Any], **options: Any) -> dict[str, Any]:
    """What becomes of a compressor, up to the moment at which it must know its variables."""

    def make() -> None:
        compressor = Compression.topk(params(), **{"density": 0.1, **options})
        compressor.resolve()
        compressor.close()

    return outcome_of(make)


def used_with(
    params: Callable[[], Any], method: Callable[..., Any] = Compression.topk, **options: Any
) -> dict[str, Any]:
    """A compressor that is used: one rank, so that Horovod only traces it."""

    def train() -> None:
        variables = list(params())
        compressor = method(variables, density=0.1, **options)
        try:
            tape_gradients(
                linear_loss(variables, [tf.ones(v.shape) for v in variables]), variables, compressor
            )
        finally:
            compressor.close()

    return outcome_of(train)


def given_without_a_call(compression: Any) -> dict[str, Any]:
    """What Horovod's tape makes of it; in a traced function, too."""

    def train() -> None:
        variables = [weight()]
        loss = linear_loss(variables, [tf.ones(v.shape) for v in variables])
        tf.function(lambda: tape_gradients(loss, variables, compression))()

    return outcome_of(train)


def made_while_traced(method: Callable[..., Any]) -> dict[str, Any]:
    """As in programs that make Horovod's compression where they wrap the tape."""

    def train() -> None:
        variables = [weight()]
        loss = linear_loss(variables, [tf.ones(v.shape) for v in variables])
        tf.function(lambda: tape_gradients(loss, variables, method(variables, density=0.1)))()

    return outcome_of(train)


def equal_models() -> dict[str, Any]:
    def make() -> None:
        made = [Compression.topk([weight()], density=0.1) for _ in range(3)]
        for compressor in reversed(made):  # whichever is used first
            compressor.resolve()
        names = [compressor.name for compressor in made]
        for compressor in made:
            compressor.close()
        numbers = [int(name.partition(".")[2] or 0) for name in names]
        assert len(set(numbers)) == 3 and numbers == sorted(numbers), names

    return outcome_of(make)


def same_name_twice() -> dict[str, Any]:
    first = Compression.topk([weight()], density=0.1, name="twin")
    first.resolve()
    outcome = made_with(lambda: [weight()], name="twin")
    first.close()
    return {**outcome, "afterwards": made_with(lambda: [weight()], name="twin")["raised"]}


def same_variable_twice() -> list[Any]:
    return 2 * [weight()]


def variable_of_1(**options: Any) -> Any:
    with tf.Graph().as_default():
        return tf.compat.v1.get_variable("old", (40, 40), **options)


def made_in_a_graph_of_1() -> dict[str, Any]:
    with tf.Graph().as_default():
        return made_with(lambda: [tf.compat.v1.get_variable("old", (40, 40))])


def used_in_a_graph_of_1() -> dict[str, Any]:
    compressor = Compression.topk([weight()], density=0.1)
    compressor.resolve()
    try:
        with tf.Graph().as_default():
            return outcome_of(lambda: hvd.allreduce(tf.ones((40, 40)), compression=compressor))
    finally:
        compressor.close()


def asked_too_early(model: Any) -> dict[str, Any]:
    return outcome_of(Compression.topk(model, density=0.1).stats)


class EmptyModule(tf.Module):
    """Without variables until it is called, and with no error of its own."""


KERAS_2: dict[str, Callable[[], Any]] = {
    "a_string": partial(made_with, lambda: "weight"),
    "a_number": partial(made_with, lambda: 3),
    "an_empty_list": partial(made_with, list),
    "a_callable_of_nothing": partial(made_with, lambda: list),
    "an_array_in_the_list": partial(made_with, lambda: [weight(), weight().numpy()]),
    "one_variable_twice": partial(made_with, same_variable_twice),
    "an_integer_variable": partial(made_with, lambda: [weight("counter", tf.int32)]),
    "an_unknown_shape": partial(
        made_with, lambda: [tf.Variable(tf.ones((2, 2)), shape=(None, 2), name="loose")]
    ),
    "a_graph_of_tensorflow_1": made_in_a_graph_of_1,
    "a_step_in_a_graph_of_tensorflow_1": used_in_a_graph_of_1,
    "a_variable_of_tensorflow_1": partial(made_with, lambda: [variable_of_1()]),
    "a_reference_of_tensorflow_1": partial(made_with, lambda: [variable_of_1(use_resource=False)]),
    "an_unbuilt_model_that_is_asked": lambda: asked_too_early(unbuilt_model()),
    "an_unbuilt_module_that_is_asked": lambda: asked_too_early(EmptyModule()),
    "an_empty_list_that_nobody_asks": lambda: outcome_of(lambda: Compression.topk([], density=0.1)),
    "a_name_of_no_operation": partial(made_with, lambda: [weight()], name="half,density=0.01"),
    "groups": partial(made_with, lambda: [weight()], groups=2),
    "selection_over_no_group": partial(
        used_with, lambda: [weight()], select_over="group", compress_1d=True, min_numel=1
    ),
    "mgs_without_groups": partial(
        used_with, lambda: [weight()], Compression.mgs, compress_1d=True, min_numel=1
    ),
    "densities_that_hide": partial(made_with, lambda: [weight()], density="hiding:300"),
    "one_name_for_two_compressors": same_name_twice,
    "a_method_that_is_not_called": lambda: given_without_a_call(Compression.ldte_bs),
    "the_class_of_methods": lambda: given_without_a_call(Compression),
    "a_compressor_made_while_a_function_is_traced": lambda: made_while_traced(Compression.ldte_bs),
    "one_of_auto_made_while_a_function_is_traced": lambda: made_while_traced(Compression.auto),
    "a_list_of_variables": partial(used_with, lambda: [weight()]),
    "a_built_model": partial(made_with, keras_model),
    "an_unbuilt_model": lambda: outcome_of(lambda: Compression.topk(unbuilt_model(), density=0.1)),
    "a_name_of_all_letters": partial(used_with, lambda: [weight()], name="A_z.0/b-"),
    "equal_models": equal_models,
    "an_integer_that_is_not_trained": partial(
        made_with, lambda: [weight(), tf.Variable(3, trainable=False, name="counter")]
    ),
}


def fit_of_keras_3() -> dict[str, Any]:
    """One rank, which has nobody to average with: the optimizer keeps its moments."""

    def train() -> None:
        from hvd_sparse.keras import DistributedOptimizer

        model, optimizer = keras_model(), tf.keras.optimizers.Adam()
        compressor = Compression.topk(model, density=0.1, optimizer=optimizer)
        model.compile(DistributedOptimizer(optimizer, compression=compressor), "mse")
        before = model.get_weights()[0].copy()
        model.fit(tf.ones((4, 3)), tf.zeros((4, 2)), verbose=0)
        compressor.close()
        assert (model.get_weights()[0] != before).any()
        assert len(optimizer.variables) == 6

    return outcome_of(train)


def wrapped_by_horovod() -> dict[str, Any]:
    """Nobody would average."""
    compressor = Compression.topk(keras_model(), density=0.1)
    try:
        return outcome_of(
            lambda: hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), compression=compressor)
        )
    finally:
        compressor.close()


KERAS_3: dict[str, Callable[[], Any]] = {
    "a_model": partial(made_with, keras_model),
    "an_unbuilt_model": lambda: outcome_of(lambda: Compression.topk(unbuilt_model(), density=0.1)),
    "variables_of_keras": partial(made_with, lambda: keras_model().trainable_variables),
    "a_callable": partial(made_with, lambda: lambda: keras_model().trainable_variables),
    "a_list_of_variables": partial(used_with, lambda: [weight()]),
    "a_fit_of_one_rank": fit_of_keras_3,
    "an_optimizer_in_horovods_wrapper": wrapped_by_horovod,
}
GRAPHS: dict[str, Callable[[], Any]] = {
    "a_variable": partial(
        made_with, lambda: [tf.compat.v1.get_variable("new", (40, 40), use_resource=True)]
    ),
    "a_reference": partial(
        made_with, lambda: [tf.compat.v1.get_variable("old", (40, 40), use_resource=False)]
    ),
    "a_model": partial(made_with, keras_model),
}

if __name__ == "__main__":
    begin(1)
    if sys.argv[1] == "graphs":
        tf.compat.v1.disable_eager_execution()
    chosen = {"2": KERAS_2, "3": KERAS_3, "graphs": GRAPHS}[sys.argv[1]]
    cases = {name: (lambda _, case=case: case()) for name, case in chosen.items()}
    run_cases(cases, hvd.rank(), lambda: None)
