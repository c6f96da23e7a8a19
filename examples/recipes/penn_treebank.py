"""Load Penn Treebank from its text files, and cut it into windows of consecutive words."""

import math

import numpy as np

FILES = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}
END = "<eos>"


def load(folder):
    """Return the texts as word numbers, and the size of the vocabulary.

    The texts are a mapping from "train", "valid" and "test" to int64 [words].
    """
    missing = [name for name in FILES.values() if not (folder / name).is_file()]
    if missing:
        raise SystemExit(f"{folder} lacks {', '.join(missing)}: --data wants Mikolov's PTB files")
    words = {part: _words(folder / name) for part, name in FILES.items()}
    vocabulary = {word: number for number, word in enumerate(sorted(set(words["train"])))}
    unknown = sorted(set(words["valid"] + words["test"]) - set(vocabulary))
    if unknown:
        raise SystemExit(f"{folder}: words that {FILES['train']} lacks, such as {unknown[0]!r}")
    ids = {part: np.array([vocabulary[word] for word in text]) for part, text in words.items()}
    return ids, len(vocabulary)


def _words(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [word for line in lines for word in (*line.split(), END)]


def perplexity(loss):
    """Return the exponential of the loss of a word; infinity if a training that diverged has none
    that a float can hold."""
    return math.inf if loss > 700 else math.exp(loss)


class Windows:
    """Windows of a rank's text: inputs, and for each word the next word, int64 [batch, words].

    The text is cut into ``batch * size`` consecutive pieces of equal length, the columns, and each
    rank gets ``batch`` of them. Each row of a window continues the same row of the window before.

    Parameters
    ----------
    ids : word numbers of the whole text, int64 [words]
    batch, words : number of rows and of words in a row of a window
    rank, size : this rank, and the number of ranks
    steps : largest number of windows; None for all windows
    """

    def __init__(self, ids, batch, words, rank, size, steps=None):
        length = len(ids) // (batch * size)
        self.columns = ids[: length * batch * size].reshape(batch * size, length)
        self.columns = self.columns[rank * batch : (rank + 1) * batch]
        whole = (length - 1) // words
        if whole < 1:
            raise SystemExit(
                f"{len(ids)} words are too few for {size} workers with batches of {batch} columns "
                f"and windows of {words} words"
            )
        self.words, self.steps = words, min(whole, steps or whole)

    def __len__(self):
        return self.steps

    def __iter__(self):
        for start in range(0, self.steps * self.words, self.words):
            stop = start + self.words
            yield self.columns[:, start:stop], self.columns[:, start + 1 : stop + 1]
