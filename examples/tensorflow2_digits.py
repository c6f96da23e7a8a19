"""Train a small network on handwritten digits with GradientTape, Horovod and sparse gradients.

horovodrun -np 2 python examples/tensorflow2_digits.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = (
    "1"  # set before TensorFlow is imported, because Horovod 0.28 supports only Keras 2
)

import digits
import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.tensorflow import Compression


def build_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(512, activation="relu"),
            tf.keras.layers.Dense(10),
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


def build_train_step(model, optimizer, compression):
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        # Line 2 of 2: pass the compressor to Horovod.
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return train_step


def train_epoch(train_step, batches, log):
    """Train one epoch; return the loss, averaged over the epoch and over all workers."""
    losses = []
    for images, labels in batches:
        with log.step():
            losses.append(float(train_step(images, labels)))
    return float(hvd.allreduce(tf.reduce_mean(losses), name="train_loss"))


def test_accuracy(model, test):
    """Return the accuracy on all test images. Each worker evaluates a part of them."""
    images, labels = (array[hvd.rank() :: hvd.size()] for array in test)
    correct = tf.equal(tf.argmax(model(images[..., None]), axis=1), labels)
    return int(hvd.allreduce(tf.math.count_nonzero(correct), op=hvd.Sum, name="correct")) / len(
        test[0]
    )


def main():
    args = digits.parse_arguments(__doc__.splitlines()[0])
    hvd.init()
    tf.keras.utils.set_random_seed(args.seed)
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)

    train, test = digits.load()
    images, labels = digits.shard(train, hvd.rank(), hvd.size(), args.batch_size)
    batches = tf.data.Dataset.from_tensor_slices((images[..., None], labels))
    batches = batches.shuffle(len(images)).batch(args.batch_size, drop_remainder=True)

    model = build_model()
    optimizer = tf.keras.optimizers.SGD(args.lr * hvd.size(), momentum=args.momentum)
    optimizer.build(model.trainable_variables)  # its state must exist before it is broadcast
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    compression = build_compression(args, model, optimizer, args.epochs * len(batches))
    train_step = build_train_step(model, optimizer, compression)

    log = digits.Log(args, hvd.rank(), compression)
    for epoch in range(1, args.epochs + 1):
        train_loss = train_epoch(train_step, batches, log)
        log.epoch(epoch, train_loss, test_accuracy=test_accuracy(model, test))
    log.summary(compression)


if __name__ == "__main__":
    main()
