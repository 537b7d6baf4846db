"""Captured graphs in a budget, on the fake runtime: what they use stays where it is, what they make is outside."""

import pytest
import torch

import remint
from tests.cuda.test_backend import MIB, NBYTES, OTHER, WALLS, assert_bytes, numbers


@pytest.mark.parametrize("wall", WALLS)
def test_a_captured_graph_is_outside_and_charged(wall):
    a, b = numbers(), numbers(OTHER)
    with remint.budget(16 * NBYTES, device="cuda", learn=False, wall=wall) as run:
        x = a.clone()
        address = x.data_ptr()
        used, outside = run.used_bytes, run.outside_bytes
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x.clone()
            z = y.clone()
        # The pool of the graph takes a whole segment; what the graph made is in it, and not managed.
        assert run.used_bytes == used
        assert run.outside_bytes >= outside + 2 * NBYTES
        assert remint.is_resident(y) is None or remint.is_resident(y)
        made = [b.clone() for _ in range(64)]
        assert run.num_evictions > 0
        # The graph has the address of x: it was neither evicted nor moved.
        assert remint.is_resident(x)
        assert x.data_ptr() == address
        for content in (a, b):
            x.copy_(content)
            graph.replay()
            assert_bytes(z, content.cpu())
        for tensor in made:
            assert_bytes(tensor, OTHER)
    graph.replay()
    assert_bytes(z, OTHER)


@pytest.mark.parametrize("wall", WALLS)
def test_a_graph_does_not_read_evicted_tensors(wall):
    a = numbers()
    graph = torch.cuda.CUDAGraph()
    with remint.budget(4 * MIB, device="cuda", learn=False, wall=wall):
        x = a.clone()
        remint.evict(x)
        with pytest.raises(RuntimeError, match=r"captured in a graph.*remint\.pin"), torch.cuda.graph(graph):
            x.clone()
        assert_bytes(x)
