"""Tools of all workers without a framework: named cases, and accounts of entries (``Books``)."""

import logging
import traceback
from functools import cache

import numpy as np
from harness import launch, report

ULP = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}

SPARSE_ONLY = {"allow_dense": False, "min_numel": 1, "compress_1d": True}
"""Options with which every tensor that is not empty is compressed at every step."""


class Cases(dict):
    def __call__(self, function):
        self[function.__name__] = function
        return function


def reduction_of(hvd, name):
    divided = {"gradient_predivide_factor": 2.0}
    return {"average": {}, "sum": {"op": hvd.Sum}, "predivide": divided}[name]


SCRIPT = 3 * ["sparse"] + 3 * ["dense"] + 2 * ["fp16"] + 3 * ["sparse"] + 2 * ["fp16"]
SCRIPT += ["sparse", "dense", "sparse"]


class Scripted:
    verdict = None
    is_timed = True
    ways = ("sparse", "dense", "fp16")
    steps = review_every = 0

    def __init__(self, script):
        self.left = list(script)
        self.told = []

    def next(self, last_s, agree):
        self.told.append(last_s)
        return self.left.pop(0)


def caught(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def run_cases(cases, rank, meet):
    """Run all cases, and report the result or error of each. A case gets its own name, and may
    assert what must hold. The report is updated after every case, so that the earlier results are
    known if a case hangs."""
    results = {}
    for name, function in cases.items():
        try:
            results[name] = {"measured": function(name)}
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1].line
            results[name] = {"error": f"{type(error).__name__}: {error} at: {line}"}
        report(rank, results)
        meet()
    return results


launched = cache(launch)


def measured(outcome, case):
    """Return a case's results by rank; AssertionError if a rank has an error or did not end it."""
    found = [(result or {}).get(case) for result in outcome.results]
    assert None not in found, f"{case} did not end on every rank\n{outcome.end}"
    errors = [f"rank {rank}: {each['error']}" for rank, each in enumerate(found) if "error" in each]
    assert not errors, "; ".join(errors)
    return [each["measured"] for each in found]


def check_every_case(outcome):
    """Check that a launch ended well, and that every case held on every rank."""
    for rank, results in enumerate(outcome.check()):
        errors = {name: case["error"] for name, case in results.items() if "error" in case}
        assert not errors, f"rank {rank}: {errors}"


def check_refused(told):
    """Check that each error text contains the words given with it, and that it is an InvalidOption
    unless the words name another error."""
    for said, words in told:
        kind = "" if words.startswith("UnsupportedInput") else "InvalidOption: "
        assert all(word in said for word in (kind, *words.split("; "))), said


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("hvd_sparse").addHandler(self)
        return self.said

    def __exit__(self, *_):
        logging.getLogger("hvd_sparse").removeHandler(self)


class Books:
    """An account of entries. Gradients are whole numbers; their sum must equal the sum of applied
    entries and residuals.

    Each framework has a subclass, whose ``fw`` is the module with its tools. ``how`` has options of
    Horovod's reduction, ``options`` those of the compressor.
    """

    def __init__(self, shapes, method, *, how=None, dtypes=None, **options):
        hvd = self.fw.hvd
        self.variables = self.fw.make_variables(shapes, dtypes)
        self.method, self.options = method, {"density": 0.05, **SPARSE_ONLY, **options}
        self.compressor = self.compress()
        # An average over three ranks is not exact in binary, a sum is.
        self.how = {"op": hvd.Sum if hvd.size() == 3 else hvd.Average, **(how or {})}
        self.given, self.applied = (
            {key: np.zeros(shape) for key, shape in shapes.items()} for _ in range(2)
        )
        self.wrap()

    def compress(self):
        params = self.fw.params_of(self.variables)
        return getattr(self.fw.Compression, self.method)(params, **self.options)

    def wrap(self):
        self.run = self.fw.Reducer(self.compressor, self.variables, **self.how)

    def gradients(self, step):
        draw = np.random.default_rng([self.fw.hvd.rank(), step])
        return {
            key: draw.integers(-8, 9, np.shape(zeros)).astype(np.float32)
            for key, zeros in self.given.items()
        }

    def take_step(self, gradients):
        reduced = self.run(gradients)
        self.note_given(gradients)
        times = 1 if self.how["op"] == self.fw.hvd.Sum else self.fw.hvd.size()
        for key, array in reduced.items():
            self.applied[key] = self.applied[key] + times * array.astype(np.float64)
        return list(reduced.values())

    def note_given(self, gradients):
        for key, gradient in gradients.items():
            self.given[key] = self.given[key] + gradient

    def kept(self):
        tensors = self.compressor.state_dict()["tensors"]
        return {
            key.partition(":")[0]: np.asarray(tensor["arrays"]["residual"])
            for key, tensor in tensors.items()
        }

    def digest(self):
        kept = self.kept()
        return self.fw.digest_of([kept[key] for key in sorted(kept)])

    def waiting(self):
        return sum(int(np.count_nonzero(array)) for array in self.kept().values())

    def missing(self):
        """Return, by tensor, the sum of gradients that was neither applied nor kept; it should be
        0."""
        kept, off = self.kept(), {}
        for key, given in self.given.items():
            mine = given - kept.get(key, np.zeros(given.shape)).reshape(given.shape)
            off[key] = np.asarray(self.fw.summed(mine, f"balance.{key}")) - self.applied[key]
        return off

    def lost(self):
        return sum(int(np.count_nonzero(array)) for array in self.missing().values())

    def alike(self, value):
        name = f"{self.compressor.name}.alike"
        return len({repr(each) for each in self.fw.hvd.allgather_object(value, name=name)}) == 1
