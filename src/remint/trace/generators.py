"""Training steps of the classic network shapes, as traces: a forward and a backward pass.

`nbytes` is the size of a typical activation and `seconds` the cost of an expensive op (a convolution, a
multiplication of matrices); what is cheap (activation functions, norms, additions) and small (weights,
statistics) follows from these. Weights are constants; their gradients are held to the end.

>>> chain(3, nbytes=1, seconds=1.0)
<Trace: 12 events, 6 ops in 6.0 s, 6 tensors>
>>> residual(2).num_ops > chain(2).num_ops
True
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from remint.trace.adversary import adversary
from remint.trace.builder import TraceBuilder
from remint.trace.trace import Trace
from remint.trace.training_step import TrainingStepWriter

__all__ = ["adversary", "chain", "random_dag", "residual", "rnn", "tree", "unet"]

_MIB = 2**20


def chain(n: int, *, nbytes: int = _MIB, seconds: float = 1e-3) -> Trace:
    """Return the linear network of DTR's theorem 3.1: `n` layers, 2 `n` ops, all costs and all sizes alike.

    Forward op i reads the output of the one before. Backward op i reads what forward op i read, and the
    gradient from layer i + 1; the first to run, of the last layer, reads nothing, as in the authors'
    experiment. With `nbytes=1, seconds=1.0` it is the unit chain.
    """
    _check("n", n)
    builder = TraceBuilder()
    activations: list[int] = []
    for _ in range(n):
        activations.extend(builder.call("forward", activations[-1:], [nbytes], seconds))
    builder.mark("backward")
    gradients: list[int] = []
    for layer in reversed(range(n)):
        builder.release(activations.pop())
        reads = [*activations[-1:], *gradients] if layer < n - 1 else []
        outputs = builder.call("backward", reads, [nbytes], seconds)
        for gradient in gradients:
            builder.release(gradient)
        gradients = list(outputs)
    return builder.build()


def residual(blocks: int, *, nbytes: int = _MIB, seconds: float = 1e-3) -> Trace:
    """Return a step of a residual network: in each block two convolutions beside a shortcut.

    Activation functions and additions are in place, norms have three outputs. After each third of the blocks
    activations are half the size, behind a convolution in the shortcut.
    """
    _check("blocks", blocks)
    net = _Net(nbytes, seconds)
    size = nbytes
    x = net.stem(size)
    for block in range(blocks):
        smaller = block > 0 and block * 3 // blocks != (block - 1) * 3 // blocks
        size = max(1, size // 2) if smaller else size
        y = net.relu_(net.norm(net.conv(x, size, keep=True)))
        y = net.norm(net.conv(y, size))
        shortcut = net.conv(x, size) if smaller else x
        z = net.tape.inplace("add_", [y, shortcut], backward="share")
        net.tape.drop(shortcut)
        x = net.relu_(z)
    return net.finish(x)


def unet(depth: int, *, nbytes: int = _MIB, seconds: float = 1e-3) -> Trace:
    """Return a step of a U-shaped network: `depth` levels down, and up again with skips from the way down.

    Sizes halve from level to level. The skips live long, and are joined (`cat`) on the way up.
    """
    _check("depth", depth)
    net = _Net(nbytes, seconds)
    sizes = [max(1, nbytes >> level) for level in range(depth + 1)]

    def double(x: int, size: int) -> int:
        for _ in range(2):
            x = net.relu_(net.norm(net.conv(x, size)))
        return x

    x = net.stem(sizes[0])
    skips = []
    for level in range(depth):
        x = double(x, sizes[level])
        skips.append(x)
        # The places of the maxima are 64-bit integers, one for each output of 32 bits.
        pooled = sizes[level + 1]
        x, places = net.tape.op("max_pool", [x], [pooled, 2 * pooled], saves=[x], saves_outputs=[1])
        net.tape.drop(places)
    x = double(x, sizes[depth])
    for level in reversed(range(depth)):
        up = net.conv(x, sizes[level], name="conv_transpose")
        skip = skips.pop()
        (x,) = net.tape.op("cat", [skip, up], [2 * sizes[level]], backward="view")
        net.tape.drop(skip, up)
        x = double(x, sizes[level])
    return net.finish(x)


def tree(depth: int, *, nbytes: int = _MIB, seconds: float = 1e-3) -> Trace:
    """Return a step of a recursive network (a TreeLSTM) over a full binary tree with 2 ** `depth` leaves."""
    _check("depth", depth)
    net = _Net(nbytes, seconds)
    features = net.tape.input(nbytes * 2**depth)
    leaf_weight, node_weight = net.tape.weight(net.weight_bytes), net.tape.weight(net.weight_bytes)

    def walk(height: int) -> tuple[int, int]:
        if height == 0:
            leaf = net.tape.view("select", features, nbytes=nbytes)
            return net.cell([leaf], [], leaf_weight, nbytes)
        (left, left_cell), (right, right_cell) = walk(height - 1), walk(height - 1)
        return net.cell([left, right], [left_cell, right_cell], node_weight, nbytes)

    state, cell = walk(depth)
    net.tape.drop(cell)
    return net.finish(state)


def rnn(steps: int, *, nbytes: int = _MIB, seconds: float = 1e-3) -> Trace:
    """Return a step of a recurrent network (an LSTM), unrolled over `steps`.

    The weight is shared, so its gradient is added up, in place, all along the way back.
    """
    _check("steps", steps)
    net = _Net(nbytes, seconds)
    sequence = net.tape.input(nbytes * steps)
    weight = net.tape.weight(net.weight_bytes)
    (state,) = net.tape.op("zeros", [], [nbytes])
    (cell,) = net.tape.op("zeros", [], [nbytes])
    for _ in range(steps):
        x = net.tape.view("select", sequence, nbytes=nbytes)
        state, cell = net.cell([x, state], [cell], weight, nbytes)
    net.tape.drop(cell)
    return net.finish(state)


def random_dag(n: int, *, seed: int = 0, nbytes: int = _MIB, seconds: float = 1e-3) -> Trace:
    """Return a step of a random network of `n` forward ops; equal seeds give equal traces.

    Sizes and costs are spread over two orders of magnitude around `nbytes` and `seconds`. Ops read one to
    three of the last few tensors; some are views, some in place, some have several outputs.
    """
    _check("n", n)
    rng = random.Random(seed)
    net = _Net(nbytes, seconds)
    tape = net.tape
    live = [net.stem(nbytes)]
    for _ in range(n):
        kind = rng.random()
        args = rng.sample(live, min(len(live), rng.randint(1, 3)))
        if kind < 0.1:
            live.append(tape.view("view", args[0]))
        elif kind < 0.25 and tape.can_write(args[0]):
            live.remove(args[0])
            live.append(tape.inplace("relu_", args[:1]))
        else:
            sizes = [max(1, round(nbytes * 10 ** rng.uniform(-1, 1))) for _ in range(rng.choice([1, 1, 1, 1, 2, 3]))]
            if rng.random() < 0.5:
                weight = tape.weight(net.weight_bytes)
                cost = seconds * 10 ** rng.uniform(-1, 1)
                saved = [*args, weight]
                live += tape.op("matmul", saved, sizes, cost, saves=saved, backward_seconds=2 * cost)
            else:
                saves_outputs = range(len(sizes)) if rng.random() < 0.5 else ()
                saves = () if saves_outputs else args
                live += tape.op("gate", args, sizes, saves=saves, saves_outputs=saves_outputs)
        while len(live) > 8:
            tape.drop(live.pop(rng.randrange(4)))
    (x,) = tape.op("sum", live, [nbytes])
    tape.drop(*live)
    return net.finish(x)


def _check(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{name} must be at least 1, not {count}")


class _Net:
    """Layers that the networks above have in common. They drop their input, unless told to `keep` it."""

    def __init__(self, nbytes: int, seconds: float) -> None:
        if nbytes < 1:
            raise ValueError(f"nbytes must be at least 1, not {nbytes}")
        # An element-wise op reads and writes memory once, which costs about a sixteenth of a convolution.
        self.tape = TrainingStepWriter(seconds_per_byte=seconds / 16 / nbytes)
        self.seconds = seconds
        self.weight_bytes = max(1, nbytes // 32)
        self.small_bytes = max(1, nbytes // 1024)

    def stem(self, nbytes: int) -> int:
        """The first layer, which reads the batch."""
        return self.conv(self.tape.input(nbytes), nbytes, keep=True)

    def conv(self, x: int, nbytes: int, *, name: str = "conv", keep: bool = False) -> int:
        reads = [x, self.tape.weight(self.weight_bytes)]
        (y,) = self.tape.op(name, reads, [nbytes], self.seconds, saves=reads, backward_seconds=2 * self.seconds)
        if not keep:
            self.tape.drop(x)
        return y

    def norm(self, x: int) -> int:
        reads = [x, self.tape.weight(self.small_bytes)]
        sizes = [self.tape.nbytes[x], self.small_bytes, self.small_bytes]
        y, mean, deviation = self.tape.op("batch_norm", reads, sizes, saves=reads, saves_outputs=[1, 2])
        self.tape.drop(x, mean, deviation)
        return y

    def relu_(self, x: int) -> int:
        return self.tape.inplace("relu_", [x])

    def cell(self, inputs: Sequence[int], cells: Sequence[int], weight: int, nbytes: int) -> tuple[int, int]:
        """An LSTM cell: its next state and next cell."""
        tape = self.tape
        (joined,) = tape.op("cat", inputs, [nbytes * len(inputs)], backward="view")
        tape.drop(*inputs)
        (gates,) = tape.op(
            "matmul",
            [joined, weight],
            [4 * nbytes],
            self.seconds,
            saves=[joined, weight],
            backward_seconds=2 * self.seconds,
        )
        tape.drop(joined)
        reads = [*tape.chunk(gates, 4), *cells]
        tape.drop(gates)
        state, cell = tape.op("lstm_cell", reads, [nbytes, nbytes], saves=reads, saves_outputs=[1])
        tape.drop(*reads)
        return state, cell

    def finish(self, x: int) -> Trace:
        """The last layers and the loss, and all the way back."""
        tape = self.tape
        (pooled,) = tape.op("mean", [x], [self.small_bytes], self.seconds / 16)
        flat = tape.view("flatten", pooled)
        tape.drop(x, pooled)
        logits = self.conv(flat, self.small_bytes, name="linear")
        reads = [logits, tape.input(self.small_bytes, "target")]
        (loss,) = tape.op("cross_entropy", reads, [4], saves=reads)
        tape.drop(logits)
        return tape.finish(loss)
