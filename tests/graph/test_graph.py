from __future__ import annotations

import json
import pickle

import pytest

from remint.graph import Graph, Op
from tests.support.planning_graphs import random_graph, unit_chain


def test_peak_and_cost_of_a_chain():
    graph = unit_chain(16)
    assert graph.cost == 33
    assert graph.peak_bytes == 18
    assert graph.min_budget_bytes == 3


def test_constants_count_everywhere():
    op = Op("f", 1.0, ("w",), {"y": 10})
    graph = Graph((op,), {"w": 5, "unused": 7}, ("y",))
    assert graph.constant_bytes == 12
    assert graph.peak_bytes == graph.min_budget_bytes == 22


def test_an_output_nobody_reads_is_there_only_while_its_op_runs():
    graph = Graph((Op("f", 1, (), {"y": 1, "scratch": 100}), Op("g", 1, ("y",), {"z": 1})), {}, ("z",))
    assert graph.peak_bytes == 101


def test_json_round_trip(tmp_path):
    for seed in range(30):
        graph = random_graph(seed, 12, 24)
        assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
        graph.save(tmp_path / "step.graph")
        assert Graph.load(tmp_path / "step.graph") == graph
        assert pickle.loads(pickle.dumps(graph)) == graph


@pytest.mark.parametrize(
    ("ops", "constants", "outputs", "message"),
    [
        ((Op("f", 1, ("x",), {"y": 1}),), {}, (), "reads 'x', which is neither"),
        ((Op("f", 1, (), {"y": 1}), Op("g", 1, (), {"y": 1})), {}, (), "'y' is made twice"),
        ((Op("f", 1, ("y",), {"x": 1}), Op("g", 1, ("x",), {"y": 1})), {}, (), "cycle"),
        ((Op("f", 1, (), {"y": 1}),), {"y": 1}, (), "name of a constant"),
        ((Op("f", 1, (), {"y": 1}),), {}, ("z",), "output 'z'"),
        ((Op("f", 1, (), {"y": 1}),), {}, ("y", "y"), "named twice"),
        ((), {"w": -1}, (), "constant 'w'"),
        ((), {"w": 1.5}, (), "constant 'w'"),
    ],
)
def test_what_makes_no_sense_is_refused(ops, constants, outputs, message):
    with pytest.raises(ValueError, match=message):
        Graph(ops, constants, outputs)


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), "1"])
def test_costs_are_seconds(cost):
    with pytest.raises(ValueError, match="a cost is a number of seconds"):
        Op("f", cost)


def test_sizes_are_whole_bytes():
    with pytest.raises(ValueError, match="output 'y'"):
        Op("f", 1, (), {"y": -1})


def test_other_files_are_refused():
    with pytest.raises(ValueError, match=r"not a remint\.graph file"):
        Graph.from_json({"format": "remint.plan", "version": 1})
    with pytest.raises(ValueError, match="version 99"):
        Graph.from_json({"format": "remint.graph", "version": 99})


def test_a_graph_cannot_be_changed():
    graph = unit_chain(2)
    with pytest.raises(AttributeError):
        graph.outputs = ()
    with pytest.raises(TypeError):
        graph.ops[0].outputs["x0"] = 5
