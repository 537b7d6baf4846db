from __future__ import annotations

import argparse
import json

import pytest

from remint.cli.plan import add_commands
from remint.graph import Graph, Plan, verify
from tests.support.planning_graphs import unit_chain


def remint(*arguments: str) -> int:
    parser = argparse.ArgumentParser("remint")
    add_commands(parser.add_subparsers(required=True))
    options = parser.parse_args(arguments)
    return options.command(options)


@pytest.fixture
def graph_file(tmp_path):
    path = tmp_path / "step.graph"
    unit_chain(16).save(path)
    return path


def test_plan_writes_a_plan_and_explains_it(graph_file, tmp_path, capsys):
    output = tmp_path / "step.plan"
    assert remint("plan", str(graph_file), "--budget", "50%", "-o", str(output), "--explain") == 0
    made = Plan.load(output)
    verify(unit_chain(16), made, "50%")
    assert made.cost == 42
    text = capsys.readouterr().out
    assert "(optimal)" in text
    assert "are rematerialized" in text


def test_a_budget_that_is_too_small_is_an_exit_code(graph_file, capsys):
    assert remint("plan", str(graph_file), "--budget", "2") == 2
    assert "no schedule exists" in capsys.readouterr().err


def test_compare_prints_one_row_per_planner(graph_file, capsys):
    assert remint("plan", str(graph_file), "--budget", "50%", "--compare", "keep,drop,chain,search") == 0
    text = capsys.readouterr().out
    for name in ("keep", "drop", "chain", "search"):
        assert name in text


def test_unknown_names_are_told(graph_file):
    with pytest.raises(ValueError, match="'best'"):
        remint("plan", str(graph_file), "--budget", "50%", "--compare", "best")
    with pytest.raises(ValueError, match="one plan goes into one file"):
        remint("plan", str(graph_file), "--budget", "50%,60%", "-o", "x")


def test_a_file_that_is_no_graph_is_named(tmp_path):
    for text in ("no JSON", "[]", '{"format": "remint.graph", "version": 1}'):
        (tmp_path / "bad.graph").write_text(text)
        with pytest.raises(ValueError, match=r"bad\.graph: .*remint capture"):
            remint("plan", str(tmp_path / "bad.graph"), "--budget", "50%")


@pytest.mark.slow
def test_capture_a_function_of_a_script(tmp_path, capsys):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "def step():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))\n"
        "    return model, (torch.ones(2, 4),), None, lambda y: y.sum()\n"
    )
    output = tmp_path / "step.graph"
    assert remint("capture", f"{script}:step", "-o", str(output), "--costs", "estimate") == 0
    assert len(Graph.load(output).ops) > 5
    with pytest.raises(ValueError, match="names no function"):
        remint("capture", "train.py", "-o", "x")


def test_a_plan_with_a_tier_tells_what_moves(graph_file, tmp_path, capsys):
    output, figures = tmp_path / "step.plan", tmp_path / "figures.json"
    tier = ("--offload", "100B", "--bandwidth", "4B", "--time-limit", "5")
    assert remint("plan", str(graph_file), "--budget", "6", *tier, "-o", str(output), "--json", str(figures)) == 0
    made = Plan.load(output)
    verify(unit_chain(16), made, 6)
    assert made.offloaded_bytes > 0
    assert f"{made.offloaded_bytes} B go to the tier" in capsys.readouterr().out
    assert json.loads(figures.read_text())[0]["fetched_bytes"] == made.fetched_bytes
    assert remint("plan", str(graph_file), "--budget", "6", *tier, "--compare", "demand,search") == 0
    with pytest.raises(ValueError, match="give both"):
        remint("plan", str(graph_file), "--budget", "6", "--offload", "100B")
