"""The training that the PyTorch examples from papers share."""

import common
import horovod.torch as hvd
import torch
from torch import nn

from hvd_sparse.torch import Compression
from recipes.options import build_compression, is_handed_over, rate_at


def begin(args):
    """Start Horovod, and set seeds and threads."""
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)


def build_optimizer(args, model):
    """Return the optimizer that the options select; biases and norms have no weight decay."""
    vectors = [p for p in model.parameters() if p.dim() < 2]
    others = [p for p in model.parameters() if p.dim() >= 2]
    groups = [{"params": others}, {"params": vectors, "weight_decay": 0.0}]
    if args.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=args.lr, weight_decay=args.weight_decay)
    return torch.optim.SGD(
        groups,
        lr=args.lr,
        momentum=args.momentum,
        nesterov=args.nesterov and args.momentum > 0,
        weight_decay=args.weight_decay,
    )


class Training:
    """A model, its optimizer wrapped by Horovod, and the log.

    Parameters
    ----------
    args : the options
    model : the model to train
    steps_per_epoch : number of steps of an epoch, the same on all ranks
    """

    def __init__(self, args, model, steps_per_epoch):
        self.args, self.model, self.steps_per_epoch = args, model, steps_per_epoch
        self.log = common.Log(args, hvd.rank())
        self.steps = 0
        optimizer = build_optimizer(args, model)
        named = list(model.named_parameters())
        # The README explains optimizer=. Horovod gets the same optimizer.
        self.compression = build_compression(
            args, steps_per_epoch, Compression, named, optimizer, hvd.Compression, common.Counter()
        )
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=named, compression=self.compression
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        # From here on, dropout and the random parts of images differ between workers.
        torch.manual_seed(args.seed * hvd.size() + hvd.rank())

    def epoch(self, batches):
        """Train on an epoch's (inputs, labels); return the loss, averaged over all workers."""
        self.model.train()
        losses = [self.step(inputs, labels) for inputs, labels in batches]
        return hvd.allreduce(torch.tensor(losses).mean(), name="train_loss").item()

    def step(self, inputs, labels):
        """Take one step; return its loss."""
        rate = rate_at(self.args, self.steps / self.steps_per_epoch, hvd.size())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.log.step():
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(inputs), labels.flatten())
            loss.backward()
            self.apply()
        self.steps += 1
        return loss.item()

    def apply(self):
        """Apply the reduced gradients. Clip them first, unless a memory has clipped them."""
        if self.args.clip_norm is None or is_handed_over(self.args):
            self.optimizer.step()
            return
        self.optimizer.synchronize()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip_norm)
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    @torch.no_grad()
    def test(self, batches):
        """Return the accuracy and mean loss on the batches of all workers.

        A batch is (inputs, labels). Workers may have different numbers of batches.
        """
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64)
        for inputs, labels in batches:
            logits, labels = self.model(inputs), labels.flatten()
            loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
            correct = (logits.argmax(dim=1) == labels).sum()
            sums += torch.tensor([correct.item(), loss.item(), len(labels)], dtype=torch.float64)
        correct, loss, count = hvd.allreduce(sums, op=hvd.Sum, name="test").tolist()
        return correct / count, loss / count

    def finish(self):
        """Log a summary of the run."""
        self.log.summary(self.compression)
