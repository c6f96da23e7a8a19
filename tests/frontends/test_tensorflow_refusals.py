"""Input that ``hvd_sparse.tensorflow`` refuses, with the value that was wrong and the way out."""

from __future__ import annotations

import pytest
from _outcomes import measured
from harness import Outcome, launch

REFUSED = {
    "density_0": ("InvalidOption", "is 0:", "(0, 1]"),
    "density_-0.5": ("InvalidOption", "is -0.5:", "(0, 1]"),
    "density_1.5": ("InvalidOption", "is 1.5:", "(0, 1]"),
    "density_nan": ("InvalidOption", "is nan:", "(0, 1]"),
    "density_'much'": ("InvalidOption", "is 'much':", "(0, 1]"),
    "density_True": ("InvalidOption", "is True:", "(0, 1]"),
    "a_string": ("InvalidOption", "'weight'", "model.trainable_variables"),
    "a_number": ("InvalidOption", "3", "model.trainable_variables"),
    "an_empty_list": ("InvalidOption", "no variables", "callable"),
    "a_callable_of_nothing": ("InvalidOption", "no variables", "callable"),
    "an_array_in_the_list": ("InvalidOption", "no tf.Variable", "model.trainable_variables"),
    "one_variable_twice": ("InvalidOption", "'weight:0'", "once"),
    "an_integer_variable": ("UnsupportedInput", "'counter:0'", "int32", "leave it out"),
    "an_unknown_shape": ("UnsupportedInput", "'loose:0'", "(None, 2)", "unknown dimensions"),
    "a_graph_of_tensorflow_1": (
        "UnsupportedInput",
        "graph of TensorFlow 1",
        "hvd.DistributedGradientTape",
    ),
    "a_step_in_a_graph_of_tensorflow_1": (
        "UnsupportedInput",
        "graph of TensorFlow 1",
        "hvd.DistributedGradientTape",
    ),
    "a_variable_of_tensorflow_1": (
        "UnsupportedInput",
        "'old:0' is in a graph of TensorFlow 1",
        "without tf.Graph",
    ),
    "a_reference_of_tensorflow_1": (
        "UnsupportedInput",
        "'old:0' is in a graph of TensorFlow 1",
        "without tf.Graph",
    ),
    "an_unbuilt_model_that_is_asked": (
        "InvalidOption",
        "no variables",
        "model.build()",
        "have not yet been created",
    ),
    "an_unbuilt_module_that_is_asked": ("InvalidOption", "no variables", "model.build()"),
    "an_empty_list_that_nobody_asks": ("InvalidOption", "no variables", "give the model itself"),
    "an_unknown_option": ("InvalidOption", "'densty'", "min_numel"),
    "an_unknown_codec": ("UnknownName", "'morse'", "index_value"),
    "an_unknown_exchange": ("UnknownName", "'pigeon'", "allgather"),
    "an_unknown_engine": ("UnknownName", "'steam'", "numpy"),
    "an_unknown_selector": ("UnknownName", "'best'", "topk"),
    "a_missing_density": ("InvalidOption", "'topk'", "'density' is missing"),
    "an_empty_name": ("InvalidOption", "name is ''"),
    "a_name_of_no_operation": ("InvalidOption", "'half,density=0.01'", "letters, digits"),
    "a_negative_min_numel": ("InvalidOption", "min_numel is -1"),
    "groups": ("InvalidOption", "groups is 2", "give groups to hvd.DistributedGradientTape"),
    "selection_over_no_group": (
        "InvalidOption",
        "select_over is 'group'",
        "'weight:0' alone",
        "give groups",
    ),
    "mgs_without_groups": (
        "InvalidOption",
        "select_over is 'group'",
        "'weight:0' alone",
        "give groups",
    ),
    "densities_that_hide": (
        "InvalidOption",
        "density is 'hiding'",
        "hvd_sparse.torch and hvd_sparse.ddp",
        "compressor.hiding.densities",
    ),
    "no_time": ("InvalidOption", "timeout_s is 0", "None"),
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
    "a_compressor_made_while_a_function_is_traced": (
        "InvalidOption",
        "inside a tf.function",
        "Make it outside",
    ),
    "one_of_auto_made_while_a_function_is_traced": (
        "InvalidOption",
        "inside a tf.function",
        "Make it outside",
    ),
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


@pytest.fixture(scope="module")
def keras_2() -> Outcome:
    return launch("frontends/tensorflow_refusals.py", 1, "mpi", "2")


@pytest.fixture(scope="module")
def keras_3() -> Outcome:
    return launch("frontends/tensorflow_refusals.py", 1, "mpi", "3")


@pytest.fixture(scope="module")
def graphs() -> Outcome:
    return launch("frontends/tensorflow_refusals.py", 1, "mpi", "graphs")


def test_all_cases_are_checked(keras_2: Outcome, keras_3: Outcome, graphs: Outcome) -> None:
    assert list(graphs.check()[0]) == OF_GRAPHS
    assert list(keras_2.check()[0]) == [*REFUSED, *ACCEPTED]
    assert list(keras_3.check()[0]) == [*OF_KERAS_3, NOBODY_AVERAGES]


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_by_name_and_with_the_remedy(keras_2: Outcome, case: str) -> None:
    kind, *words = REFUSED[case]
    (result,) = measured(keras_2, case)
    assert result["raised"] == kind, result["words"]
    assert all(word in result["words"] for word in words), result["words"]


@pytest.mark.parametrize("case", ACCEPTED)
def test_models_and_lists_are_accepted(keras_2: Outcome, case: str) -> None:
    (result,) = measured(keras_2, case)
    assert result["raised"] == "nothing", result["words"]


def test_a_name_is_free_again_after_close(keras_2: Outcome) -> None:
    (result,) = measured(keras_2, "one_name_for_two_compressors")
    assert result["afterwards"] == "nothing"


@pytest.mark.parametrize("case", OF_GRAPHS)
def test_programs_without_eager_execution_are_refused_with_the_way_out(
    graphs: Outcome, case: str
) -> None:
    (result,) = measured(graphs, case)
    assert result["raised"] == "UnsupportedInput", result["words"]
    for words in (
        "graph of TensorFlow 1",
        "disable_eager_execution",
        "hvd.DistributedGradientTape",
        "fp16",
    ):
        assert words in result["words"]


@pytest.mark.parametrize("case", OF_KERAS_3)
def test_keras_3_is_accepted(keras_3: Outcome, case: str) -> None:
    (result,) = measured(keras_3, case)
    assert result["raised"] == "nothing", result["words"]


def test_keras_3_is_refused_where_nobody_would_average(keras_3: Outcome) -> None:
    (result,) = measured(keras_3, NOBODY_AVERAGES)
    assert result["raised"] == "UnsupportedInput", result["words"]
    for words in ("Keras 3", "hvd_sparse.keras.DistributedOptimizer", "TF_USE_LEGACY_KERAS=1"):
        assert words in result["words"]
