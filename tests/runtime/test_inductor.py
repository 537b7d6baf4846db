"""Regions that inductor compiled, in the middle of an eager program inside a budget."""

import subprocess
import sys

# In a process of its own: compiled code and its caches stay with it.
PROGRAM = """
import torch, remint
from torch import nn
torch.set_num_threads(1)
COSTS = [1e-5] * 10_000  # not from the clock: the same evictions every time

def model():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 32), nn.Tanh())
    around = [nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Sigmoid()) for _ in range(6)]
    return nn.ModuleList([*around, body])

def train(net, compiled, x):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        y = x
        for part in net[:-1]:
            y = compiled(part(y)) + y
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [t.detach() for t in net.state_dict().values()] + [p.grad for p in net.parameters()]

x = torch.randn(512, 32)
net = model()
expected = train(net, torch.compile(net[-1]), x)
with remint.budget("64MiB") as run:
    net = model()
    free = train(net, torch.compile(net[-1]), x)
for budget, chaos in ((run.peak_bytes * 7 // 10, False), ("64MiB", True)):
    net = model()
    compiled = torch.compile(net[-1])
    with remint.budget(budget, chaos=chaos, costs=COSTS) as run:
        found = train(net, compiled, x)
    assert run.num_rematerializations > 0
    for a, b, c in zip(sum(expected, []), sum(free, []), sum(found, []), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
print("same")
"""


def test_compiled_regions_in_an_eager_program():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout.strip() == "same", done.stderr[-2000:]
