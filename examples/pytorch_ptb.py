"""Train an LSTM of two layers on Penn Treebank with PyTorch, Horovod and sparse gradients.

horovodrun -np 4 python examples/pytorch_ptb.py --data /data/ptb

The folder has ptb.train.txt, ptb.valid.txt and ptb.test.txt.
"""

import horovod.torch as hvd
import torch
from recipes import penn_treebank
from recipes.options import PENN_TREEBANK, make_parser, read_arguments
from recipes.torch_networks import Language
from recipes.torch_training import Training, begin


def to_torch(windows):
    """Yield the windows as tensors."""
    for words, following in windows:
        yield torch.from_numpy(words), torch.from_numpy(following)


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

    model = Language(vocabulary, args.width, args.dropout)
    training = Training(args, model, len(windows))
    for epoch in range(1, args.epochs + 1):
        model.forget()
        train_loss = training.epoch(to_torch(windows))
        model.forget()
        _, loss = training.test(to_torch(tested))
        training.log.epoch(epoch, train_loss, test_perplexity=penn_treebank.perplexity(loss))
    training.finish()


if __name__ == "__main__":
    main()
