"""Training steps of the classic network shapes, as traces: the public name of `remint.trace.generators`."""

from remint.trace.generators import adversary, chain, random_dag, residual, rnn, tree, unet

__all__ = ["adversary", "chain", "random_dag", "residual", "rnn", "tree", "unet"]
