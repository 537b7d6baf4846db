"""A TreeLSTM: another graph for every tree, so there is nothing to plan ahead. The runtime needs no graph."""

import random

import torch
from torch import nn

import remint

Tree = int | tuple["Tree", "Tree"]


def random_tree(leaves: int) -> Tree:
    """Return a tree with that many leaves, each a word."""
    if leaves == 1:
        return random.randrange(100)
    left = random.randint(1, leaves - 1)
    return random_tree(left), random_tree(leaves - left)


class TreeLSTM(nn.Module):
    """Binary TreeLSTM (Tai et al., 2015), one node at a time."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.gates = nn.Linear(2 * width, 5 * width)
        self.score = nn.Linear(width, 2)

    def node(self, tree: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the hidden and the cell state of a subtree, for every sentence of the batch."""
        if isinstance(tree, int):
            h = self.embed(torch.full((64,), tree))
            return h, torch.zeros_like(h)
        (h1, c1), (h2, c2) = self.node(tree[0]), self.node(tree[1])
        i, f1, f2, o, u = self.gates(torch.cat([h1, h2], 1)).chunk(5, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f1) * c1 + torch.sigmoid(f2) * c2
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, tree: Tree) -> torch.Tensor:
        """Return the scores of the root."""
        return self.score(self.node(tree)[0])


def train(fraction: float, peaks: list[int]) -> list[float]:
    """Train on trees of several sizes; `peaks` has the bytes that each step needs, or gets them."""
    torch.manual_seed(0)
    random.seed(0)
    model = TreeLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, leaves in enumerate((12, 31, 7, 24)):
        tree = random_tree(leaves)
        with remint.budget("1GiB" if fraction == 1 else int(fraction * peaks[step])) as run:
            loss = nn.functional.cross_entropy(model(tree), torch.zeros(64, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if fraction == 1:
            peaks.append(run.peak_bytes)
        else:
            print(f"{leaves} leaves: {run!r}")
        losses.append(loss.item())
    return losses


peaks: list[int] = []
losses = train(1, peaks)
again = train(0.7, peaks)
print("losses", losses, "the same bits:", losses == again)
assert losses == again
