"""Penn Treebank from its text files, as columns of words that are read on from step to step."""

import numpy as np

FILES = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}
END = "<eos>"


def load(folder):
    """Return the words of train, valid and test as numbers, int64, and the size of the
    vocabulary."""
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


class Windows:
    """Windows of a rank's columns: inputs and the words that follow them, int64 [batch, words].

    The text is cut into columns, one behind the other, and dealt out to the ranks; so the words of
    a window's row follow those of the same row of the window before.

    Parameters
    ----------
    ids : of the whole text
    batch, words : size of a window
    rank, size : which columns
    steps : windows at most; None for all there are
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
