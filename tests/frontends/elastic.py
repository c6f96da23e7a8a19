"""Worker of an elastic run whose workers die during a step.

The elastic state contains the accounts: the gradients, the applied entries, the residuals of the
workers, and the residuals of workers that died.

Arguments: "torch", "tensorflow" or "keras3", the number of workers to kill, and a folder in which
kills are recorded. With "device", PyTorch's gradients are on the pretend device, and Horovod
reduces them there. On a cluster of containers: "torch", "until", and a file.
"""

import os
import signal
import sys
import time
import uuid
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from _common import SPARSE_ONLY
from _framework import fw
from harness import report, slow

KIND, hvd = sys.argv[1], fw.hvd
ON_DEVICE = "device" in sys.argv[4:]
if ON_DEVICE:
    from devices import carried, pretend
if KIND == "torch":
    import torch
else:
    import tensorflow as tf

WORKER = uuid.uuid4().hex
SIZE = 3
STEPS_A_KILL = 6
LIMIT_S = 1200
DENSITY = 0.05
SHAPES = {"wide": (16, 20), "tall": (30, 6)}
NUMEL = sum(int(np.prod(shape)) for shape in SHAPES.values())


def gradients_of(rank, step):
    draw = np.random.default_rng([rank, step])
    return {key: draw.normal(size=shape).astype("f4") for key, shape in SHAPES.items()}


def flat(arrays):
    return np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in arrays])


def empty_books():
    zero = np.zeros(NUMEL)
    return {"given": zero, "applied": zero, "lost": zero, "owed": {}, "off": [], "sizes": []}


def residual_of(residuals):
    return flat(residuals[key] for key in SHAPES) if residuals else np.zeros(NUMEL)


def owed_by(here):
    return {worker: residual / len(here) for worker, residual in here}


def note_reset(books, here):
    """Return the accounts after the state is synchronized. ``off`` gets the difference between the
    sum of the new residuals and that of the surviving workers' residuals."""
    owed, kept, died = owed_by(here), np.zeros(NUMEL), np.zeros(NUMEL)
    for worker, owed_before in books["owed"].items():
        where = kept if worker in owed else died
        where += owed_before
    off = float(np.abs(sum(owed.values()) - kept).max())
    noted = {"off": [*books["off"], off], "sizes": [*books["sizes"], len(here)]}
    return {**books, "lost": books["lost"] + died, "owed": owed, **noted}


def note_step(books, given, applied, here):
    sums = {"given": books["given"] + given, "applied": books["applied"] + applied}
    return {**books, **sums, "owed": owed_by(here)}


def conclude(books):
    balance = books["given"] - books["applied"] - books["lost"] - sum(books["owed"].values())
    return {
        "missing": float(np.abs(balance).max()),
        "lost": float(np.abs(books["lost"]).max()),
        "given": float(np.abs(books["given"]).max()),
        "off": books["off"],
        "sizes": books["sizes"],
    }


class Killer:
    """Kills workers during a step, every few steps and each rank in turn, when all ranks are
    present. Kills are recorded in a folder.

    Only one rank may read ``done`` and must tell the others, because a worker could die between the
    readings of two ranks.
    """

    steps_a_commit = 1

    def __init__(self, folder, kills):
        self._folder = Path(folder)
        self._kills = kills

    @property
    def done(self):
        return len(list(self._folder.glob("kill.*")))

    def is_over(self, done, size):
        return done == self._kills and size == SIZE

    def visit(self, done, rank, size, step):
        if (
            size == SIZE
            and step % STEPS_A_KILL == STEPS_A_KILL - 1
            and done < self._kills
            and rank == done % SIZE
        ):
            (self._folder / f"kill.{done}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Until:
    """Ends a run on a cluster when a file appears there. Hosts may fail before. Every third step is
    committed, so a failure undoes some steps."""

    steps_a_commit = 3

    def __init__(self, path):
        self._path = Path(path)
        self._ends_s = time.monotonic() + LIMIT_S

    @property
    def done(self):
        assert time.monotonic() < self._ends_s, f"{self._path} did not appear within {LIMIT_S} s"
        return int(self._path.exists())

    def is_over(self, done, size):
        return bool(done)

    def visit(self, done, rank, size, step):
        """Do nothing, because no worker is killed."""

    def check(self, books):
        assert max(books["off"]) < 1e-6 * books["given"], f"a reset lost what is owed: {books}"
        assert books["missing"] < 1e-5 * books["given"], f"entries are missing: {books}"
        return f"{books['sizes']} ranks, all alike; died with hosts {books['lost']:.3g}"


def compressor_of(params, **options):
    # Twice this must be longer than Horovod's own limit, which is scaled too: some ranks notice
    # only then that another has died, and the watchdog must not end them before.
    chosen = {**SPARSE_ONLY, "timeout_s": slow(60.0), **options}
    return fw.Compression.topk(params, density=DENSITY, name="elastic", **chosen)


def shape_of(name):
    return name.split("/")[-1].split(":")[0]


# Each framework has an elastic state, a function that takes a step of gradients, in which a worker
# may die, and returns what was applied, and one that returns arrays that all ranks have alike.


def of_torch():
    place = torch.device("cpu")
    if ON_DEVICE:
        place = pretend.load()
        pretend.late(True)
    model = torch.nn.ParameterDict(fw.make_variables(SHAPES)).to(place)
    named = list(model.items())
    # Every world measures anew, and plans if it lasts.
    compressor = compressor_of(named, groups="planned")
    descent = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(descent, named_parameters=named, compression=compressor)
    # From Horovod's optimizer, which shares no learning rate with ``descent`` after a restore.
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def take_step(gradients, may_die):
        scheduler.load_state_dict(state.schedule)  # as the guide asks; a new worker has to
        optimizer.zero_grad()
        fw.give_gradients(
            {model[key]: torch.from_numpy(g).to(place) for key, g in gradients.items()}
        )
        may_die()
        optimizer.step()
        scheduler.step()
        state.schedule = scheduler.state_dict()
        return flat(model[key].grad.cpu() for key in SHAPES)

    def replica():
        rate = torch.tensor([optimizer.param_groups[0]["lr"]])
        return [*(parameter.cpu() for parameter in model.parameters()), rate]

    state = hvd.elastic.TorchState(
        model=model,
        optimizer=optimizer,
        compressor=compressor,
        schedule=scheduler.state_dict(),
        books=empty_books(),
        step=0,
    )
    return state, take_step, replica


def of_tensorflow():
    from hvd_sparse.tensorflow.elastic import TensorFlowKerasState

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            for key, variable in fw.make_variables(SHAPES).items():
                setattr(self, key, variable)
            self.built = True

    model = Model()
    variables = [getattr(model, key) for key in SHAPES]
    optimizer = tf.keras.optimizers.legacy.SGD(0.01, momentum=0.9)
    # Makes its slots, which are synchronized.
    optimizer.apply_gradients((tf.zeros(v.shape), v) for v in variables)
    compressor = compressor_of(variables)

    @tf.function
    def step(*gradients):
        loss = fw.linear_loss(variables, gradients)
        reduced = fw.tape_gradients(loss, variables, compressor)
        optimizer.apply_gradients(zip(reduced, variables))
        return reduced

    def take_step(gradients, may_die):
        may_die()
        return flat(step(*(tf.constant(array) for array in gradients.values())))

    state = TensorFlowKerasState(
        model, optimizer, compressor=compressor, books=empty_books(), step=0
    )
    return state, take_step, lambda: variables


def of_keras3():
    import keras

    from hvd_sparse.keras import DistributedOptimizer
    from hvd_sparse.keras.elastic import KerasState

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            for key, shape in SHAPES.items():
                setattr(self, key, self.add_weight(shape=shape, initializer="zeros", name=key))
            self.built = True

        def call(self, inputs):
            products = [tf.reduce_sum(getattr(self, key) * inputs[key][0]) for key in SHAPES]
            return tf.reshape(sum(products), [1, 1])

    class Noting(keras.optimizers.SGD):
        def __init__(self, **options):
            super().__init__(0.01, momentum=0.9, **options)
            self.given = {key: tf.Variable(tf.zeros(shape)) for key, shape in SHAPES.items()}

        def update_step(self, gradient, variable, learning_rate):
            self.given[shape_of(variable.name)].assign(gradient)
            super().update_step(gradient, variable, learning_rate)

    model, optimizer = Model(), Noting()
    compressor = compressor_of(model)
    model.compile(
        DistributedOptimizer(optimizer, compression=compressor), lambda _, loss: tf.reduce_sum(loss)
    )

    def take_step(gradients, may_die):
        may_die()
        inputs = {key: array[None] for key, array in gradients.items()}
        model.fit(inputs, np.zeros(1), verbose=0)
        return flat(optimizer.given[key] for key in SHAPES)

    def replica():
        return [np.asarray(each) for each in [*model.weights, *optimizer.variables]]

    return KerasState(model, compressor=compressor, books=empty_books(), step=0), take_step, replica


def main():
    fw.begin(0)
    state, take_step, replica = {
        "torch": of_torch,
        "tensorflow": of_tensorflow,
        "keras3": of_keras3,
    }[KIND]()  # fmt: skip
    is_until, seen = sys.argv[2] == "until", 0
    killer = Until(sys.argv[3]) if is_until else Killer(sys.argv[3], int(sys.argv[2]))

    def say(words):
        if hvd.rank() == 0:
            print(words, flush=True)

    def residuals():
        tensors = state.compressor.state_dict()["tensors"]
        kept = {shape_of(key): tensor["arrays"]["residual"] for key, tensor in tensors.items()}
        return hvd.allgather_object((WORKER, residual_of(kept)), name="residuals")

    @hvd.elastic.run
    def train(state):
        nonlocal seen  # outside the state: what a fault takes back shows as the difference
        back = max(0, seen - state.step)
        say(f"begins on {hvd.size()} ranks: step {state.step}, {back} steps taken back")
        state.books = note_reset(state.books, residuals())
        state.save()  # a worker may die before the first commit, with what it was just given
        while not killer.is_over(
            done := hvd.broadcast_object(killer.done, 0, name="done"), hvd.size()
        ):
            gradients = gradients_of(hvd.rank(), state.step)
            applied = take_step(
                gradients, lambda: killer.visit(done, hvd.rank(), hvd.size(), state.step)
            )
            given = np.asarray(fw.summed(flat(gradients.values()), "given")) / hvd.size()
            state.books = note_step(state.books, given, applied, residuals())
            digests = hvd.allgather_object(fw.digest_of(replica()), name="digests")
            assert len(set(digests)) == 1, f"replicas differ at step {state.step}"
            state.step += 1
            seen = max(seen, state.step)
            say(f"step {state.step} on {hvd.size()} ranks")
            time.sleep(0.05)
            if state.step % killer.steps_a_commit == 0:
                state.commit()

    train(state)
    if is_until:
        print(f"rank {hvd.rank()}: {killer.check(conclude(state.books))}", flush=True)
        hvd.allgather_object(0, name="end")
        return
    stats, weights = state.compressor.stats(), fw.digest_of(replica())
    ways = {"ways": sorted(set(stats["ways"].values())), "wire": stats["wire"]} if ON_DEVICE else {}
    report(hvd.rank(), {**conclude(state.books), "weights": weights, **ways})


if __name__ == "__main__":
    with carried.carrying() if ON_DEVICE else nullcontext():
        main()
