"""Local steps, between which ranks exchange."""

import copy
import time
from functools import partial

import numpy as np
from _common import SPARSE_ONLY, Cases, caught, check_refused
from _framework import NAME, fw

if NAME == "torch":
    import torch
else:
    import tensorflow as tf

    from hvd_sparse.tensorflow.graph_functions import GraphFunctions

hvd, Compression, LocalSteps = fw.hvd, fw.Compression, fw.LocalSteps
SHAPES = {"weights": (24, 10), "biases": (10,)}
OUTER = {"outer_lr": 0.7, "outer_momentum": 0.9, "nesterov": True}
cases = Cases()


class Training:
    def __init__(self, name, every, density=1.0, dtype="float32", method=Compression.topk, **outer):
        self.variables = fw.make_variables(SHAPES, [dtype] * len(SHAPES))
        draw = np.random.RandomState(hvd.rank())
        self.assign([draw.normal(size=shape) for shape in SHAPES.values()])
        made = partial(method, name=name, density=density, **SPARSE_ONLY)
        options = {"compression": made, "every": every, **outer}
        if NAME == "torch":
            self.descent = torch.optim.SGD(self.variables.values(), lr=0.1, momentum=0.5)
            self.local = LocalSteps(self.descent, self.variables.items(), **options)
        else:
            self.local = LocalSteps(list(self.variables.values()), **options)

    def assign(self, arrays):
        for variable, array in zip(self.variables.values(), arrays):
            if NAME == "torch":
                variable.data.copy_(torch.as_tensor(array))
            else:
                variable.assign(tf.cast(array, variable.dtype))

    def arrays(self):
        if NAME == "torch":
            return [v.detach().float().numpy().copy() for v in self.variables.values()]
        return [tf.cast(v, tf.float32).numpy() for v in self.variables.values()]

    def descend(self, step):
        draw = np.random.RandomState(1000 * step + hvd.rank())
        inputs, labels = draw.normal(size=(8, 24)), draw.randint(10, size=8)
        weights, biases = self.arrays()
        powers = np.exp(inputs @ weights + biases)
        errors = (powers / powers.sum(1, keepdims=True) - np.eye(10)[labels]) / len(labels)
        gradients = [inputs.T @ errors, errors.sum(0)]
        for variable, gradient in zip(self.variables.values(), gradients):
            if NAME == "torch":
                variable.grad = torch.as_tensor(gradient).to(variable.dtype)
            else:
                variable.assign_sub(tf.cast(0.1 * gradient, variable.dtype))
        if NAME == "torch":
            self.descent.step()

    def flat(self):
        return np.concatenate([each.ravel().astype(np.float64) for each in self.arrays()])

    def mean(self, name):
        return np.asarray(fw.summed(self.flat(), name)) / hvd.size()

    def digest(self):
        return fw.digest_of(self.arrays())

    def is_alike(self):
        """Return whether all ranks have the same parameters."""
        return len(set(hvd.allgather_object(self.digest(), name="local_steps.alike"))) == 1


def beside_the_outer_step(name, *, every, **outer):
    """With everything sent, the outer step is the one that is written out here."""
    training = Training(name, every, **outer)
    rate, kept = outer.get("outer_lr", 1.0), outer.get("outer_momentum", 0.0)
    anchor, velocity, furthest, alike = training.flat(), 0.0, 0.0, []
    for step in range(4 * every):
        training.descend(step)
        is_exchanged = step % every == every - 1
        if is_exchanged:
            moved = anchor - training.mean(f"{name}.{step}")
            velocity = kept * velocity + moved
            anchor = anchor - rate * (moved + kept * velocity)
        training.local.advance()
        alike.append(training.is_alike())
        if is_exchanged:
            furthest = max(furthest, float(np.abs(training.flat() - anchor).max()))
    exchanges = training.local.stats()["steps"]
    training.local.compressor.close()
    assert alike == 4 * [*(every - 1) * [False], True], alike
    assert furthest < 1e-5 and exchanges == 4, (furthest, exchanges)


cases["outer_mean"] = partial(beside_the_outer_step, every=3)
cases["outer_nesterov"] = partial(beside_the_outer_step, every=2, **OUTER)


@cases
def bfloat16_becomes_the_ranks_mean(name):
    training = Training(name, 2, dtype="bfloat16")
    alike, start = [training.is_alike()], training.flat()
    for step in range(2):
        training.descend(step)
        mean = training.mean(f"{name}.{step}")
        training.local.advance()
        alike.append(training.is_alike())
    training.local.compressor.close()
    assert alike == [True, False, True], alike
    furthest = np.abs(training.flat() - mean) / np.maximum(np.abs(mean), 0.01)
    assert furthest.max() < 2**-6, furthest.max()  # a few roundings to 8 bits
    assert np.abs(training.flat() - start).max() > 0.01


def keep_the_ledger(name, most=1.0, **options):
    """What ranks have moved is applied or kept. ``most`` bounds the density."""
    training = Training(name, 3, 0.1, **options)
    start = anchor = training.flat()
    moved = np.zeros_like(start)
    for step in range(9):
        training.descend(step)
        if step % 3 == 2:
            moved += anchor - training.flat()
        training.local.advance()
        if step % 3 == 2:
            anchor = training.flat()
    compressor = training.local.compressor
    tensors = {
        key.partition(":")[0]: np.asarray(each["arrays"]["residual"]).ravel()
        for key, each in compressor.state_dict()["tensors"].items()
    }
    kept = np.concatenate([tensors[key] for key in SHAPES])
    lost = np.asarray(fw.summed(moved - kept, f"{name}.kept")) - hvd.size() * (start - anchor)
    density = training.local.stats()["density_achieved"]
    compressor.close()
    assert training.is_alike()
    assert np.abs(lost).max() < 1e-5 < np.abs(kept).max()
    assert 0 < density < most, density


cases["kept_by_topk"] = keep_the_ledger
sbc = {"method": Compression.sbc, "most": 0.15}
cases["kept_by_sbc_with_its_delay"] = partial(keep_the_ledger, **sbc)


def receive_later(self, number, *given):
    """Receive the second variable's result last on rank 0, and first on all other ranks."""
    if (self._tickets[int(number)].position == 1) == (hvd.rank() == 0):
        time.sleep(0.3)
    return GraphFunctions.receive(self, number, *given)


@cases
def an_exchange_is_possible_after_one_that_failed(name):
    training = Training(name, 2, method=partial(Compression.topk, on_nonfinite="raise"))
    training.descend(0)
    training.local.advance()
    good = training.arrays()
    if NAME == "tensorflow":
        training.local.compressor.resolve()
        functions = training.local.compressor.functions
        functions.receive = partial(receive_later, functions)
    if hvd.rank() == 0:
        training.assign([good[0], np.full_like(good[1], np.nan)])
    words = caught(training.local.advance)
    training.assign(good)
    training.local.exchange()
    training.local.compressor.close()
    assert training.is_alike()
    assert "NonFiniteGradient" in words, words


@cases
def a_checkpoint_in_the_middle_goes_on(name):
    whole, half = (Training(f"{name}.{part}", 4, 0.1, **OUTER) for part in ("whole", "half"))
    for step in range(6):
        whole.descend(step)
        whole.local.advance()
    half.local.load_state_dict(copy.deepcopy(whole.local.state_dict()))
    half.assign(whole.arrays())
    if NAME == "torch":
        half.descent.load_state_dict(copy.deepcopy(whole.descent.state_dict()))
    for training in (whole, half):
        for step in range(6, 10):
            training.descend(step)
            training.local.advance()
        training.local.exchange()
        training.local.compressor.close()
    assert whole.is_alike()
    assert half.digest() == whole.digest()


@cases
def horovods_own_compressor_has_no_state(name):
    training = Training(name, 2, method=lambda *_, **__: hvd.Compression.none, **OUTER)
    for step in range(3):
        training.descend(step)
        training.local.advance()
    state, anchors = copy.deepcopy(training.local.state_dict()), training.arrays()
    assert state["compressor"] is None and state["taken"] == 1
    training.local.exchange()
    saved = state["anchors"]
    fewer = dict(list(saved.items())[:1]) if NAME == "torch" else saved[:1]
    other = {**state, "anchors": fewer}
    assert "same model" in caught(training.local.load_state_dict, other)
    assert training.local.taken == 0
    training.local.load_state_dict(state)
    assert training.local.taken == 1
    training.assign(anchors)
    training.local.exchange()
    assert training.is_alike()
    assert "counts nothing" in caught(training.local.stats)


made = partial(Compression.topk, density=0.1)


@cases
def refused(name):
    training = Training(name, 2)
    given = training.variables.items() if NAME == "torch" else list(training.variables.values())
    first = [training.descent] if NAME == "torch" else []
    right = {"compression": made, "every": 2}
    wrong = [
        ({"compression": "topk"}, "functools.partial"),
        ({"every": 0}, "1 or more"),
        ({"nesterov": True}, "without outer_momentum"),
        ({"outer_momentum": 1.0}, "outer_momentum of LocalSteps is"),
    ]
    said = [
        [caught(partial(LocalSteps, *first, given, **{**right, **each})), words]
        for each, words in wrong
    ]
    if NAME == "torch":
        horovods = fw.optimizer_without_motion(training.variables, training.local.compressor)
        last = caught(partial(LocalSteps, horovods, given, **right))
        said.append([last, "give LocalSteps the optimizer itself"])
    else:
        last = caught(tf.function(lambda: LocalSteps(given, **right) and None))
        said.append([last, "before the training"])
    training.local.compressor.close()
    check_refused(said)


def check_unfrozen(words):
    assert "InvalidOption: " in words and "'weights" in words, words
    assert "make LocalSteps while" in words, words


def frozen_in_torch(name):
    """A layer is exchanged once it is unfrozen, or refused."""
    training, alike = Training(name, 2), []
    weights = training.variables["weights"]
    weights.requires_grad_(False)
    for step in range(4):
        if step == 2:
            weights.requires_grad_(True)
        before = weights.detach().clone()
        training.descend(step)
        if step < 2:
            weights.data.copy_(before)
        training.local.advance()
        alike.append(training.is_alike())
    training.local.compressor.close()
    model = fw.make_variables(SHAPES)
    model["weights"].requires_grad_(False)
    descent = torch.optim.SGD(model.values(), lr=0.1)
    local = LocalSteps(descent, model.items(), compression=partial(made, name=name), every=2)
    model["weights"].requires_grad_(True)
    words = [caught(take) for take in (local.step, local.advance)]
    local.compressor.close()
    assert alike == [False, True, False, True], alike
    for each in words:
        check_unfrozen(each)


def frozen_in_tensorflow(name):
    trained = [tf.Variable(tf.ones([3, 4]), name=f"{name}.0")]
    local = LocalSteps(lambda: trained, compression=partial(made, name=name), every=2)
    local.advance()
    trained.append(tf.Variable(tf.ones([3, 4]), name="weights"))
    words = caught(local.advance)
    local.compressor.close()
    check_unfrozen(words)


cases["frozen"] = frozen_in_torch if NAME == "torch" else frozen_in_tensorflow
