"""`remint doctor --device`: it passes where budgets work, and says so where they do not."""

import itertools
import json

import pytest
import torch

from remint.cli.parser import main
from remint.runtime import conformance

RIGHT_OR_WRONG = ["bits", "bits without deterministic algorithms", "wall"]


def test_the_cpu_passes(tmp_path, capsys):
    path = tmp_path / "cpu.json"
    assert main(["doctor", "--device", "cpu", "--samples", "0", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert report["device"] == "cpu"
    checks = {check["what"]: check for check in report["checks"]}
    assert all(checks[name]["ok"] for name in RIGHT_OR_WRONG)
    assert not any(check["ok"] is False for check in checks.values())
    assert checks["bits"]["figures"]["replays_at_50"] > 0
    assert capsys.readouterr().out.count("ok ") == len(RIGHT_OR_WRONG)


def test_operators(monkeypatch):
    module = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    few = [op for op in module.op_db if op.name in ("add", "nn.functional.dropout", "cumsum")]
    monkeypatch.setattr(module, "op_db", few)
    check = conformance._operators("cpu", 2)
    assert check.ok
    assert check.figures["samples"] >= 5
    assert check.figures["evicting"] > 0


def test_a_difference_is_found(monkeypatch, capsys):
    """A device that gives other bits in a budget."""
    right = conformance._train

    def wrong(device, **options):
        numbers, peak, replays = right(device, **options)
        return ([numbers[0] + (1 if options else 0), *numbers[1:]], peak, replays)

    monkeypatch.setattr(conformance, "_train", wrong)
    assert main(["doctor", "--device", "cpu", "--samples", "0"]) == 1
    said = capsys.readouterr()
    assert "BAD  bits " in said.out
    assert "2 of 8 checks failed on cpu" in said.err


def test_noise_of_the_device_is_no_difference(monkeypatch):
    """Kernels that differ from run to run without a budget."""
    right, count = conformance._train, itertools.count()

    def noisy(device, **options):
        numbers, peak, replays = right(device, **options)
        return ([numbers[0] + next(count), *numbers[1:]], peak, replays)

    monkeypatch.setattr(conformance, "_train", noisy)
    assert conformance._bits("cpu").ok is None
    assert "nothing to compare" in conformance._bits("cpu").found


def test_unknown_devices(capsys):
    assert main(["doctor", "--device", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert main(["doctor", "--device", "meta"]) == 2
    assert "no budgets for the device meta" in capsys.readouterr().err


@pytest.mark.accelerator
def test_the_test_device_passes(tmp_path):
    from remint.testing import accelerator

    path = tmp_path / "device.json"
    accelerator.load(devices=2, delay_us=200)
    assert main(["doctor", "--device", accelerator.NAME, "--samples", "0", "--json", str(path)]) == 0
    checks = {check["what"]: check for check in json.loads(path.read_text())["checks"]}
    assert all(checks[name]["ok"] for name in [*RIGHT_OR_WRONG, "streams"])
    assert checks["wall"]["figures"]["taken_from_device_bytes"] >= 64 << 20
    torch.accelerator.synchronize()
