"""Worker: faults that must raise an error of this package on every rank. The first word of a case's
name is its kind. Arguments: the framework, and the number of ranks."""

import itertools
import sys
from functools import partial

from _common import Cases
from _framework import NAME, compress, fails, fw

if NAME == "torch":
    import _torch_faults as own
else:
    import _tensorflow_faults as own

hvd, last_rank = fw.hvd, fw.last_rank
SHAPES = {"first": (6,), "wide": (8, 6), "deep": (6, 3), "last": (3,)}
"""Shapes of the variables. The gradient of the first variable comes last."""
OTHERS = {"first": (7,), "wide": (8, 7), "deep": (7, 3), "last": (3,)}
cases = Cases()

BY_HOROVOD = ("NotImplementedError", "HorovodInternalError: No Adasum operation enabled")
"""Horovod's own words on Adasum: for powers of two alone, and not by Gloo."""
DENSE_AND_LAST = "unknown_first_on_one_rank"
REMEDY = "give the compressor all variables" if NAME == "tensorflow" else ""
FAULTS = {
    "reduction": (("UnsupportedReduction",), ("hvd.Average", "hvd.Sum")),
    "difference": (("RankMismatch",), ()),
    "process_set": (("RankMismatch", "UnsupportedReduction"), ("process_set",)),
    "unknown": (("PeerFailure", "UnknownGradient"), (REMEDY,)),
    "changed": (("ChangedGradient",), ("call optimizer.synchronize() first", "'1.weight'")),
    "alone": (("RankMismatch",), ()),
    "outlived": (("InvalidOption",), ("gc.collect()",)),
    "converted": (("PeerFailure",), ("UnsupportedInput", "is float64 now, and was float32")),
    "late": (("PeerFailure", "NonFiniteGradient"), ()),
    "again": (("PeerFailure",), ("InvalidOption", "optimizer.skip_synchronize()")),
}
"""By the first word of a case: the errors, by class or in the words of TensorFlow's, and what they
say."""


def checked(case, name):
    """Run a case, and check that its fault is an error of ours on this rank."""
    result = case(name)
    errors, words = next((each for kind, each in FAULTS.items() if name.startswith(kind)), ((), ()))
    if not errors:
        return
    said = result["raised"]
    if name == DENSE_AND_LAST and NAME == "torch":
        # All messages have gone when it comes, and a dense gradient has no carrier: docs/adr/0005.
        wanted = ("PeerFailure: ", "UnknownGradient") if last_rank() else ("nothing was raised",)
        assert all(word in said for word in wanted), said
        return
    if name == "reduction_adasum_later" and said.startswith(BY_HOROVOD):
        return
    assert result["is_usable"], said
    if result.get("is_member", True):
        assert any(f"{error}: " in said for error in errors), said
        assert all(word in said for word in words), said


def one_step(case, shapes=SHAPES, how=None, later=None, **options):
    variables = fw.make_variables(shapes)
    compressor = compress(fw.params_of(variables), **{"name": case, **options})
    if later is None:
        return fails(case, compressor, fw.step_of(compressor, variables, **how or {}))
    return fails(case, compressor, fw.later_step_of(compressor, variables, **later))


REDUCTIONS = {"min": hvd.Min, "max": hvd.Max, "product": hvd.Product, "adasum": hvd.Adasum}
for label, op in REDUCTIONS.items():
    cases[f"reduction_{label}"] = partial(one_step, how={"op": op}, telemetry=True)
    in_groups = {"op": op, "groups": 2, "as_function": True}
    if NAME == "tensorflow":
        cases[f"reduction_{label}_in_groups"] = partial(one_step, how=in_groups, telemetry=True)
    cases[f"reduction_{label}_later"] = partial(
        one_step, later={"op": op}, telemetry=True, compress_1d=True
    )


def process_set_cases(some):
    def train(name, *, is_ours, later):
        everyone = {"process_set": hvd.global_process_set}
        ours, theirs = ({"process_set": some}, everyone)[:: 1 if is_ours else -1]
        way = {"later": {**theirs, "ours": ours}} if later else {"how": theirs}
        result = one_step(name, compress_1d=fw.COMPRESSES_1D or later, **ours, **way)
        return {**result, "is_member": is_ours or NAME == "tensorflow" or some.included()}

    found = Cases()
    for is_ours, later in itertools.product((False, True), repeat=2):
        if NAME == "torch" and is_ours and later:
            continue  # who is not in it has nothing to send by hand
        whose = "compressor" if is_ours else "program"
        label = f"process_set_of_the_{whose}_is_smaller{'_later' if later else ''}"
        found[label] = partial(train, is_ours=is_ours, later=later)
    return found


@cases
def difference_by_a_layer(name):
    return one_step(name, {**SHAPES, "more": (3, 3)} if last_rank() else SHAPES)


@cases
def difference_of_shapes_and_names_by_default(name):
    """By default, the compressor's name depends on the shapes, so the names of the collectives
    differ, too."""
    return one_step(name, OTHERS if last_rank() else SHAPES, name=None)


@cases
def difference_of_steps(name):
    variables = fw.make_variables(SHAPES)
    compressor = compress(fw.params_of(variables), name=name)
    step = fw.step_of(compressor, variables)
    step()
    checkpoint = compressor.state_dict()
    step()
    if last_rank():
        compressor.load_state_dict(checkpoint)
    return fails(name, compressor, step)


def unknown(name, *, keys, on_all, later=False, **how):
    """The program has replaced variables of the compressor by others with the same names and
    shapes.

    later : the graph is traced with the compressor's variables and then runs with others
    """
    variables, copies = fw.make_variables(SHAPES), fw.make_variables(SHAPES)
    strange = {key: copies[key] for key in keys if on_all or last_rank()}
    if later:
        compressor = compress(fw.params_of(variables), name=name)
        fw.step_of(compressor, variables, **how)()
        return fails(name, compressor, fw.step_of(compressor, {**variables, **strange}, **how))
    compressor = compress(fw.params_of({**variables, **strange}), name=name)
    return fails(name, compressor, fw.step_of(compressor, variables, **how))


for on_all in (False, True):
    where = "on_all_ranks" if on_all else "on_one_rank"
    for key in SHAPES:
        cases[f"unknown_{key}_{where}"] = partial(unknown, keys=[key], on_all=on_all)
    if NAME == "tensorflow":
        made = partial(unknown, keys=["deep"], on_all=on_all)
        cases[f"unknown_{where}_in_a_group"] = partial(made, groups=1)
        cases[f"unknown_{where}_later"] = partial(made, later=True)
cases["unknown_model_on_one_rank"] = partial(unknown, keys=list(SHAPES), on_all=False)


if __name__ == "__main__":
    process_sets = fw.begin(int(sys.argv[2]))
    cases |= own.cases
    if "one_left_out" in process_sets:
        cases |= process_set_cases(process_sets["one_left_out"])
    fw.run({name: partial(checked, case) for name, case in cases.items()})
