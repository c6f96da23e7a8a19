"""Train an LSTM of two layers on Penn Treebank with model.fit, Horovod and sparse gradients.

horovodrun -np 4 python examples/tensorflow2_keras_ptb.py --data /data/ptb

The folder has ptb.train.txt, ptb.valid.txt and ptb.test.txt.
"""

import os

# Set this before TensorFlow is imported, because Horovod 0.28 supports only Keras 2.
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from recipes import keras_networks, penn_treebank
from recipes.keras_training import begin, compile_model, fit
from recipes.options import PENN_TREEBANK, make_parser, read_arguments


class NewTexts(tf.keras.callbacks.Callback):
    """Reset the LSTM's state at the beginning of a text."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.reset_states()

    def on_test_begin(self, logs=None):
        self.model.reset_states()


def main():
    parser = make_parser(__doc__.splitlines()[0], PENN_TREEBANK)
    parser.add_argument("--width", type=int, default=1500, help="size of embedding and layers")
    parser.add_argument("--dropout", type=float, default=0.65)
    parser.add_argument("--words", type=int, default=35, help="number of words of a window")
    args = read_arguments(parser, PENN_TREEBANK)
    begin(args)

    texts, vocabulary = penn_treebank.load(args.data)
    shape = (args.batch_size, args.words, hvd.rank(), hvd.size())
    windows = penn_treebank.Windows(texts["train"], *shape, args.steps)
    tested = penn_treebank.Windows(texts["test"], *shape)

    model = keras_networks.language(vocabulary, args.batch_size, args.width, args.dropout)
    compression = compile_model(args, model, len(windows))
    fit(
        args,
        model,
        compression,
        windows,
        tested,
        lambda logs: {"test_perplexity": penn_treebank.perplexity(logs["val_entropy"])},
        NewTexts(),
    )


if __name__ == "__main__":
    main()
