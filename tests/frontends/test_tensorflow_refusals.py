"""Input that ``hvd_sparse.tensorflow`` refuses, with the value that was wrong and the way out."""

from __future__ import annotations

import pytest
from _outcomes import measured
from harness import Outcome, launch

OF_GRAPH = ("UnsupportedInput", "graph of TensorFlow 1", "hvd.DistributedGradientTape")
OF_VARIABLE = ("UnsupportedInput", "'old:0' is in a graph of TensorFlow 1", "without tf.Graph")
ALONE = ("InvalidOption", "select_over is 'group'", "'weight:0' alone", "give groups")
TRACED = ("InvalidOption", "inside a tf.function", "Make it outside")
REFUSED = {
    "a_string": ("InvalidOption", "'weight'", "model.trainable_variables"),
    "a_number": ("InvalidOption", "3", "model.trainable_variables"),
    "an_empty_list": ("InvalidOption", "no variables", "callable"),
    "a_callable_of_nothing": ("InvalidOption", "no variables", "callable"),
    "an_array_in_the_list": ("InvalidOption", "no tf.Variable", "model.trainable_variables"),
    "one_variable_twice": ("InvalidOption", "'weight:0'", "once"),
    "an_integer_variable": ("UnsupportedInput", "'counter:0'", "int32", "leave it out"),
    "an_unknown_shape": ("UnsupportedInput", "'loose:0'", "(None, 2)", "unknown dimensions"),
    "a_graph_of_tensorflow_1": OF_GRAPH,
    "a_step_in_a_graph_of_tensorflow_1": OF_GRAPH,
    "a_variable_of_tensorflow_1": OF_VARIABLE,
    "a_reference_of_tensorflow_1": OF_VARIABLE,
    "an_unbuilt_model_that_is_asked": (
        "InvalidOption",
        "no variables",
        "model.build()",
        "have not yet been created",
    ),
    "an_unbuilt_module_that_is_asked": ("InvalidOption", "no variables", "model.build()"),
    "an_empty_list_that_nobody_asks": ("InvalidOption", "no variables", "give the model itself"),
    "a_name_of_no_operation": ("InvalidOption", "'half,density=0.01'", "letters, digits"),
    "groups": ("InvalidOption", "groups is 2", "give groups to hvd.DistributedGradientTape"),
    "selection_over_no_group": ALONE,
    "mgs_without_groups": ALONE,
    "densities_that_hide": (
        "InvalidOption",
        "density is 'hiding'",
        "hvd_sparse.torch and hvd_sparse.ddp",
        "compressor.hiding.densities",
    ),
    "one_name_for_two_compressors": ("InvalidOption", "'twin'", "name=", "close()"),
    "a_method_that_is_not_called": (
        "InvalidOption",
        "the method itself",
        "compression=Compression.ldte_bs(params, ...)",
    ),
    "the_class_of_methods": (
        "InvalidOption",
        "the class itself",
        "compression=Compression.ldte_bs(params, ",
    ),
    "a_compressor_made_while_a_function_is_traced": TRACED,
    "one_of_auto_made_while_a_function_is_traced": TRACED,
}
ACCEPTED = [
    "a_list_of_variables",
    "a_built_model",
    "an_unbuilt_model",
    "a_name_of_all_letters",
    "equal_models",
    "an_integer_that_is_not_trained",
]
OF_GRAPHS = ["a_variable", "a_reference", "a_model"]
OF_KERAS_3 = [
    "a_model",
    "an_unbuilt_model",
    "variables_of_keras",
    "a_callable",
    "a_list_of_variables",
    "a_fit_of_one_rank",
]
NOBODY_AVERAGES = "an_optimizer_in_horovods_wrapper"


def outcome_of(which: str) -> Outcome:
    return launch("frontends/tensorflow_refusals.py", 1, "mpi", which)


@pytest.fixture(scope="module")
def keras_2() -> Outcome:
    return outcome_of("2")


@pytest.fixture(scope="module")
def keras_3() -> Outcome:
    return outcome_of("3")


@pytest.fixture(scope="module")
def graphs() -> Outcome:
    return outcome_of("graphs")


def test_all_cases_are_checked(keras_2: Outcome, keras_3: Outcome, graphs: Outcome) -> None:
    assert list(graphs.check()[0]) == OF_GRAPHS
    assert list(keras_2.check()[0]) == [*REFUSED, *ACCEPTED]
    assert list(keras_3.check()[0]) == [*OF_KERAS_3, NOBODY_AVERAGES]


def check(outcome: Outcome, case: str, kind: str, *words: str) -> None:
    (result,) = measured(outcome, case)
    assert result["raised"] == kind, result["words"]
    assert all(word in result["words"] for word in words), result["words"]


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_by_name_and_with_the_remedy(keras_2: Outcome, case: str) -> None:
    check(keras_2, case, *REFUSED[case])


@pytest.mark.parametrize("case", ACCEPTED)
def test_models_and_lists_are_accepted(keras_2: Outcome, case: str) -> None:
    check(keras_2, case, "nothing")


def test_a_name_is_free_again_after_close(keras_2: Outcome) -> None:
    (result,) = measured(keras_2, "one_name_for_two_compressors")
    assert result["afterwards"] == "nothing"


@pytest.mark.parametrize("case", OF_GRAPHS)
def test_programs_without_eager_execution_are_refused_with_the_way_out(
    graphs: Outcome, case: str
) -> None:
    check(graphs, case, *OF_GRAPH, "disable_eager_execution", "fp16")


@pytest.mark.parametrize("case", OF_KERAS_3)
def test_keras_3_is_accepted(keras_3: Outcome, case: str) -> None:
    check(keras_3, case, "nothing")


def test_keras_3_is_refused_where_nobody_would_average(keras_3: Outcome) -> None:
    remedies = ("Keras 3", "hvd_sparse.keras.DistributedOptimizer", "TF_USE_LEGACY_KERAS=1")
    check(keras_3, NOBODY_AVERAGES, "UnsupportedInput", *remedies)
