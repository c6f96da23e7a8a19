"""The training that the Keras examples from papers share."""

import common
import horovod.tensorflow.keras as hvd
import tensorflow as tf

from hvd_sparse.tensorflow import Compression
from recipes.options import build_compression, is_handed_over, rate_at


def begin(args):
    """Start Horovod, and set seeds and threads."""
    hvd.init()
    tf.keras.utils.set_random_seed(args.seed)
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)


def build_optimizer(args):
    """Return the optimizer that the options select.

    If no memory of the compressor clips gradients, the optimizer clips the averaged gradients.
    """
    clipping = None if is_handed_over(args) else args.clip_norm
    if args.optimizer == "adamw":
        return tf.keras.optimizers.AdamW(
            args.lr, weight_decay=args.weight_decay, global_clipnorm=clipping
        )
    nesterov = args.nesterov and args.momentum > 0
    return tf.keras.optimizers.SGD(args.lr, args.momentum, nesterov, global_clipnorm=clipping)


def add_decay(args, model):
    """Add SGD's weight decay to the model, as L2 penalties of its matrices; AdamW has its own."""
    if args.optimizer == "adamw" or not args.weight_decay:
        return
    for weights in model.trainable_weights:
        if len(weights.shape) > 1:
            model.add_loss(lambda weights=weights: args.weight_decay * tf.nn.l2_loss(weights))


def compile_model(args, model, steps_per_epoch):
    """Compile a model with Horovod's optimizer; return the compressor.

    Parameters
    ----------
    args : the options
    model : a model that is built but not compiled
    steps_per_epoch : number of steps of an epoch, the same on all ranks
    """
    add_decay(args, model)
    optimizer = build_optimizer(args)
    counter = tf.Variable(0, dtype=tf.int64, trainable=False)
    compression = build_compression(
        args,
        steps_per_epoch,
        Compression,
        model,
        optimizer,
        hvd.Compression,
        counter,
        lambda tensor: tf.size(tensor, tf.int64),  # an embedding's size is known only at run time
    )
    # An embedding's gradient has only some of the rows, but the memory needs the whole tensor.
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression, sparse_as_dense=True)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy", Entropy()])
    # From here on, dropout differs between workers.
    tf.keras.utils.set_random_seed(args.seed * hvd.size() + hvd.rank())
    return compression


class Entropy(tf.keras.metrics.SparseCategoricalCrossentropy):
    """The cross entropy of logits, without penalties."""

    def __init__(self, name="entropy", **options):
        super().__init__(name, from_logits=True)


class Rates(tf.keras.callbacks.Callback):
    """Set the learning rate of every step."""

    def __init__(self, args, steps_per_epoch):
        super().__init__()
        self.args, self.steps_per_epoch, self.steps = args, steps_per_epoch, 0

    def on_train_batch_begin(self, batch, logs=None):
        rate = rate_at(self.args, self.steps / self.steps_per_epoch, hvd.size())
        self.model.optimizer.learning_rate.assign(rate)
        self.steps += 1


class Logged(tf.keras.callbacks.Callback):
    """Pass the times of the steps and the averaged metrics of the epochs to the log.

    Parameters
    ----------
    log : the log of the run
    results : function that gets the metrics of an epoch and returns the results to log
    """

    def __init__(self, log, results):
        super().__init__()
        self.log, self.results = log, results

    def on_train_batch_begin(self, batch, logs=None):
        self.log.begin_step()

    def on_train_batch_end(self, batch, logs=None):
        self.log.end_step()

    def on_epoch_end(self, epoch, logs=None):
        self.log.epoch(epoch + 1, logs["entropy"], **self.results(logs))


def fit(args, model, compression, batches, validation, results, *more):
    """Train a compiled model, and log every epoch and a summary.

    Parameters
    ----------
    batches, validation : iterables of (inputs, labels) for training and for testing;
        ``len(batches)`` is the number of steps of an epoch
    results : as in ``Logged``
    more : further callbacks
    """
    log = common.Log(args, hvd.rank())
    average_metrics = hvd.callbacks.MetricAverageCallback()
    # Horovod gives the callback the backend of Keras 3, which lacks functions that it calls.
    average_metrics.backend = tf.keras.backend
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        Rates(args, len(batches)),
        *more,
        average_metrics,
        Logged(log, results),  # after average_metrics, so that it gets the averaged metrics
    ]
    train, test = (dataset_of(each) for each in (batches, validation))
    model.fit(train, epochs=args.epochs, validation_data=test, callbacks=callbacks, verbose=0)
    log.summary(compression)


def dataset_of(batches):
    """Return a data set that iterates over ``batches`` again in every epoch."""
    inputs, labels = next(iter(batches))
    signature = tuple(
        tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in (inputs, labels)
    )
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
