"""Train a small network on digits with model.fit of Keras 3, Horovod and sparse gradients.

horovodrun -np 2 python examples/tensorflow2_keras3_digits.py
"""

import digits
import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_sparse.keras import Compression, DistributedOptimizer, callbacks


def build_model():
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def build_compression(args, model, optimizer, steps):
    if args.compression in digits.STOCK:
        counter = tf.Variable(0, dtype=tf.int64, trainable=False)
        path = None if hvd.rank() else args.telemetry
        return digits.Metered(getattr(hvd.Compression, args.compression), counter, telemetry=path)
    # Line 1 of the 2 lines that make gradients sparse. For one fixed method, the line is
    # compression = Compression.ldte_bs(model, optimizer=optimizer, steps=steps)
    method = getattr(Compression, args.compression)
    told = {**digits.sending(args, steps), **digits.watching(args, hvd.rank())}
    return method(model, optimizer=optimizer, **told)


class LogCallback(keras.callbacks.Callback):
    """Pass the times of the steps and the averaged metrics of the epochs to the log."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def on_train_batch_begin(self, batch, logs=None):
        self.log.begin_step()

    def on_train_batch_end(self, batch, logs=None):
        self.log.end_step()

    def on_epoch_end(self, epoch, logs=None):
        self.log.epoch(epoch + 1, logs["loss"], test_accuracy=logs["val_accuracy"])


def main():
    args = digits.parse_arguments(__doc__.splitlines()[0])
    hvd.init()
    keras.utils.set_random_seed(args.seed)
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)

    train, (test_images, test_labels) = digits.load()
    images, labels = digits.shard(train, hvd.rank(), hvd.size(), args.batch_size)
    batches = tf.data.Dataset.from_tensor_slices((images[..., None], labels))
    batches = batches.shuffle(len(images)).batch(args.batch_size, drop_remainder=True)

    model = build_model()
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=args.momentum)
    compression = build_compression(args, model, optimizer, args.epochs * len(batches))
    # Line 2 of 2. Horovod's own wrapper supports only Keras 2, and would not average gradients.
    optimizer = DistributedOptimizer(optimizer, compression=compression)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # On a GPU, Keras 3 enables XLA by default, but XLA cannot compile Horovod's collectives.
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)

    log = digits.Log(args, hvd.rank(), compression)
    # Every worker tests on all images, because an average over unequal parts would not be exact.
    validation = (test_images[..., None], test_labels)
    model.fit(
        batches,
        epochs=args.epochs,
        validation_data=validation,
        validation_batch_size=len(test_images),
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0),
            callbacks.MetricAverageCallback(),
            LogCallback(log),  # after MetricAverageCallback, to get the averaged metrics
        ],
        verbose=0,
    )
    log.summary(compression)


if __name__ == "__main__":
    main()
