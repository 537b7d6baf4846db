"""Budgets with a file below them: the same bits at budgets that recomputation cannot reach, and what goes wrong."""

from __future__ import annotations

import functools
import itertools
import math
import os
import signal
import subprocess
import sys
import textwrap
from typing import get_args

import pytest
import torch

import remint
from remint import Offload, generators
from remint.offload import TierUse
from tests.support.all_inside import assert_same_numbers, state_away_between_steps, train_here, train_inside
from tests.support.training import COSTS

# Given, so that decisions do not depend on the disk.
FAST = Offload(bytes="4GiB", bandwidth="1GB")


@functools.cache
def plain(name: str, optimizer: str = "adam") -> dict[str, torch.Tensor]:
    return train_inside(name, optimizer=optimizer)[0]


@functools.cache
def peak(name: str, optimizer: str = "adam") -> int:
    return train_inside(name, remint.budget("1GiB", costs=COSTS, learn=False), optimizer=optimizer)[1].peak_bytes


def slow(name: str, percent: int):
    return pytest.param(name, percent, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "percent"),
    [
        pytest.param("wide", 25, marks=pytest.mark.smoke),
        ("wide", 40),
        *itertools.product(["resnet", "transformer", "lstm", "gpt2_sdpa", "lora_llama"], [40, 25]),
        slow("segformer", 40),
        slow("segformer", 25),
        # At a quarter, the workspace of one of its convolutions does not fit.
        slow("convnext", 40),
    ],
)
def test_bits_where_recomputation_cannot_reach(name, percent):
    budget = peak(name) * percent // 100
    found, run = train_inside(name, remint.budget(budget, costs=COSTS, offload=FAST, max_slowdown=None))
    assert_same_numbers(plain(name), found)
    assert run.peak_bytes <= budget
    assert run.num_fetches > 0 or (name, percent) == ("lstm", 40)


@pytest.mark.parametrize("policy", [name for name in remint.policy_names() if name != "clairvoyant"])
def test_bits_with_every_policy(policy):
    budget = peak("wide") * 3 // 10
    found, run = train_inside(
        "wide", remint.budget(budget, policy=policy, costs=COSTS, offload=FAST, check=True, max_slowdown=None)
    )
    assert_same_numbers(plain("wide"), found)
    assert run.num_fetches > 0


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_bits_with_other_optimizers(optimizer):
    budget = peak("wide", optimizer) * 3 // 10
    inside = remint.budget(budget, costs=COSTS, offload=FAST, check=True, max_slowdown=None)
    found, run = train_inside("wide", inside, optimizer=optimizer)
    assert_same_numbers(plain("wide", optimizer), found)
    assert run.num_fetches > 0


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_state_of_an_optimizer_leaves_between_its_uses(optimizer):
    budget = peak("wide", optimizer) * 3 // 10
    expected, _ = state_away_between_steps(None, optimizer)
    found, away = state_away_between_steps(remint.budget(budget, costs=COSTS, offload=FAST, check=True), optimizer)
    assert_same_numbers(expected, found)
    assert all(part > 0.5 for part in away[1:])


@pytest.mark.runtime
@pytest.mark.parametrize("bandwidth", ["1kB", "1TB"])
@pytest.mark.parametrize("name", ["wide", "resnet"])
def test_chaos(name, bandwidth):
    """Everything leaves after every op: what no recipe makes goes to the file, and the rest goes the quicker way."""
    offload = Offload(bytes="1GiB", bandwidth=bandwidth)
    inside = remint.budget("1GiB", costs=COSTS, chaos=True, check=True, offload=offload, max_slowdown=None)
    found, run = train_inside(name, inside, steps=2)
    assert_same_numbers(train_inside(name, steps=2)[0], found)
    assert run.num_fetches > 100
    assert run.num_clean_offloads > 0


@pytest.mark.runtime
def test_recomputation_alone_does_not_reach_it():
    budget = peak("wide") * 3 // 10
    with pytest.raises(remint.BudgetError):
        train_inside("wide", remint.budget(budget, costs=COSTS, learn=False))


def state_outlives_the_budget(inside) -> list[torch.Tensor]:
    with inside as run:
        kept = [torch.ones(64, 1024) + number for number in range(12)]
        for each in kept:
            each.add_(1)
            # A parameter cannot be recomputed; nor can what was written in place from it.
            each.requires_grad_(True)
            (each * 2).sum().backward()
        assert run.used_bytes <= run.budget_bytes
    return [*kept, *(each.grad for each in kept)]


@pytest.mark.runtime
def test_all_is_ordinary_after_the_end_even_if_it_never_fitted():
    found = state_outlives_the_budget(remint.budget("2MiB", costs=COSTS, offload=FAST, check=True))
    for number, each in enumerate(found[:12]):
        assert each[0, 0].item() == number + 2
        assert each.numpy(force=True).min() == number + 2
    for each in found[12:]:
        assert torch.equal(each, torch.full((64, 1024), 2.0))


@pytest.mark.runtime
def test_readers_fetch():
    with remint.budget("1MiB", offload=FAST, learn=False, check=True):
        x = torch.arange(1000.0)
        remint.pin(y := torch.arange(1000.0) + 0)
        z = (x + 1).requires_grad_(True)
        z.square().sum().backward()
        assert remint.evict(x)
        assert not remint.is_resident(x)
        assert x.tolist()[-1] == 999
        assert remint.evict(z)
        assert z.detach().numpy()[0] == 1
        assert not remint.evict(z), "its address is known from here on"
        assert not remint.evict(y), "remint.pin keeps it in memory"
        assert remint.evict(z.grad)
        assert z.grad[2].item() == 6
        view = x.view(10, 100)
        assert remint.evict(x)
        assert view[9, 99].item() == 999
        assert remint.evict(x)
        with torch.no_grad():
            view.mul_(2)
        assert remint.evict(x)
        assert x[-1].item() == 1998


@pytest.mark.parametrize("policy", ["coop", "dtr-eq", "lru"])
@pytest.mark.parametrize("percent", [60, 35])
@pytest.mark.parametrize("name", ["wide", "resnet"])
def test_simulated_is_run(name, policy, percent):
    """Byte for byte and transfer for transfer, with given costs and bandwidth."""

    def inside_of(inside):
        torch.manual_seed(0)
        with inside as result:
            train_here(name, "adam", 2)
        return result

    recording = inside_of(remint.record())
    offloads = [
        compare(inside_of, recording, percent, Offload(bytes="1GiB", bandwidth=bandwidth), policy=policy)
        for bandwidth in ("100MB", "10GB")
    ]
    # How much it is worth at 100 MB a second depends on what the ops were measured to cost.
    assert offloads[1] > 0 or percent > 50


FIGURES = [
    "peak_bytes",
    "num_ops",
    "num_evictions",
    "num_frees",
    "num_rematerializations",
    "num_searches",
    "moved_bytes",
    "num_offloads",
    "num_clean_offloads",
    "num_fetches",
    "offloaded_bytes",
    "fetched_bytes",
    "transfer_seconds",
    "offload_peak_bytes",
]


def compare(program, recording, percent: int, offload: Offload, policy: str = "coop") -> int:
    """Return the number of offloads."""
    budget = recording.peak_bytes * percent // 100
    expected = remint.simulate(
        recording.trace,
        budget=budget,
        policy=policy,
        memory="arena",
        max_slowdown=math.inf,
        events=True,
        offload=offload,
    )
    assert expected.status == "ok", expected.failure
    run = program(
        remint.budget(
            budget, policy=policy, costs=recording.trace, events=True, offload=offload, max_slowdown=None, learn=False
        )
    ).finished()
    assert [e for e in run.events if e[0] != "C"] == [e for e in expected.events if e[0] != "C"]
    for figure in FIGURES:
        assert getattr(run, figure) == getattr(expected, figure), figure
    return run.num_offloads


# As quick as half a second per gigabyte, a tier is quicker than recomputing some tensors, and slower for others.
@pytest.mark.parametrize("bandwidth", ["10MB", "2GB", "1TB"])
def test_a_learned_step_chooses_the_use_of_the_tier_that_loses_least(bandwidth):
    budget = peak("wide") * 4 // 10
    lost = {}
    for use in get_args(TierUse):
        offload = Offload(bytes="1GiB", bandwidth=bandwidth, use=use)
        inside = remint.budget(budget, costs=COSTS, offload=offload, max_slowdown=None)
        found, run = train_inside("wide", inside, steps=8)
        assert_same_numbers(train_inside("wide", steps=8)[0], found)
        if use == "either":
            chosen, chosen_lost = run.learning.tier_use, run.transfer_seconds + run.rematerialized_seconds
        else:
            assert run.learning.tier_use == "", "it was given"
        lost[use] = run.transfer_seconds + run.rematerialized_seconds
    assert chosen in lost
    # Its first steps are those of the quicker way, value by value; what was found holds for the rest.
    assert chosen_lost <= 1.2 * min(lost.values())


@pytest.mark.parametrize("use", get_args(TierUse))
def test_what_no_recipe_makes_leaves_whatever_the_tier_is_used_for(use):
    offload = Offload(bytes="1GiB", bandwidth="1GB", use=use)
    found = state_outlives_the_budget(remint.budget("2MiB", costs=COSTS, offload=offload, check=True))
    assert found[5][0, 0].item() == 7


@pytest.mark.core
def test_uses_of_a_tier_in_a_simulation():
    trace = generators.unet(3)
    runs = {
        use: remint.simulate(
            trace, budget="50%", memory="arena", policy="coop", offload=Offload(bytes="1GiB", bandwidth=1e9, use=use)
        )
        for use in get_args(TierUse)
    }
    assert runs["recompute"].num_rematerializations > runs["either"].num_rematerializations
    assert runs["offload"].num_offloads > 0
    assert runs["offload"].num_rematerializations < runs["recompute"].num_rematerializations


def python(script: str, *args: str, check: bool = True, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=check,
        **options,
    )


def test_the_file_has_no_name_and_a_killed_process_leaves_none(tmp_path):
    script = """
        import os, sys, torch, remint
        budget = remint.budget("1MiB", offload=remint.Offload(bytes="1GiB", path=sys.argv[1]), learn=False)
        with budget as run:
            kept = [torch.zeros(1000, 100).requires_grad_(True) for _ in range(8)]
            for each in kept:
                (each * 2).sum().backward()
            assert run.num_offloads > 0
            assert os.listdir(sys.argv[1]) == []
            print("here", flush=True)
            os.kill(os.getpid(), 9)
    """
    done = python(script, str(tmp_path), check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "here" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_loses_nothing(tmp_path):
    """The file can grow to a megabyte: from there on it is as if the tier were full."""
    script = """
        import resource, sys, torch, remint
        budget = remint.budget("1MiB", offload=remint.Offload(bytes="1GiB", path=sys.argv[1], bandwidth="1GB"),
                               learn=False, check=True)
        with budget as run:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
            kept = []
            try:
                for number in range(100):
                    kept.append(torch.empty(64, 1024).fill_(number).requires_grad_(True))
                    (kept[-1] * 2).sum().backward()
            except remint.BudgetError as error:
                print(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            kept.pop()
            assert run.num_offloads > 0
            assert len(kept) >= 2
            assert all(each.detach()[0, 0].item() == number for number, each in enumerate(kept))
        assert all(each[5, 5].item() == number for number, each in enumerate(kept))
        print("kept", len(kept))
    """
    done = python(script, str(tmp_path))
    assert "took no more (File too large)" in done.stdout
    assert "Nothing was lost" in done.stdout
    assert "kept" in done.stdout


def test_a_read_error_says_what_to_do_and_leaves_the_tensor_in_the_file(tmp_path):
    script = """
        import os, sys, torch, remint
        with remint.budget("1MiB", offload=remint.Offload(bytes="1GiB", path=sys.argv[1]), learn=False, check=True):
            x = torch.nn.Parameter(torch.arange(10000.0))
            y = x + 1
            assert remint.evict(x)
            links = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                     if os.path.exists(f"/proc/self/fd/{fd}")}
            links |= {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in map(str, range(3, 64))
                      if os.path.lexists(f"/proc/self/fd/{fd}")}
            (file,) = {fd for fd, link in links.items() if link.startswith(sys.argv[1])}
            content = os.pread(file, 1 << 20, 0)
            os.ftruncate(file, 0)
            for _ in range(2):
                try:
                    x + 1
                except RuntimeError as error:
                    assert "cannot be read from the file" in str(error), error
                else:
                    raise AssertionError("it was read")
            os.pwrite(file, content, 0)
            assert (x + 1).equal(y)
        print("fine")
    """
    assert "fine" in python(script, str(tmp_path)).stdout


@pytest.mark.parametrize("tensor", ["offloaded", "copied"])
def test_a_forked_process_does_not_read_what_its_parent_changes(tmp_path, tensor):
    script = """
        import os, sys, torch, remint
        torch.set_num_threads(1)
        with remint.budget("1MiB", offload=remint.Offload(bytes="1GiB", path=sys.argv[1]), learn=False, check=True):
            x = torch.nn.Parameter(torch.arange(10000.0))
            y = x + 1
            assert remint.evict(x)
            if sys.argv[2] == "copied":
                remint.materialize(x)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    if sys.argv[2] == "copied":
                        assert not remint.evict(x), "there is no file that is its own"
                        code = 0 if torch.equal(x + 1, y) else 2
                    else:
                        try:
                            x + 1
                        except RuntimeError as error:
                            code = 0 if "before this process was forked" in str(error) else 3
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            assert torch.equal(x + 1, y)
        print("fine")
    """
    assert "fine" in python(script, str(tmp_path), tensor).stdout


def test_spilling_is_the_last_resort():
    """The tier takes what it can; the rest goes to ordinary memory."""
    offload = Offload(bytes="1MiB", bandwidth="1GB")
    with pytest.warns(UserWarning, match="overflow"):
        found = state_outlives_the_budget_softly(remint.budget("2MiB", costs=COSTS, offload=offload, overflow="spill"))
    for number, each in enumerate(found):
        assert each[0, 0].item() == number + 2


def state_outlives_the_budget_softly(inside) -> list[torch.Tensor]:
    with inside as run:
        kept = [torch.ones(64, 1024) + number for number in range(12)]
        for each in kept:
            each.add_(1)
            each.requires_grad_(True)
            (each * 2).sum().backward()
        assert run.spilled_bytes > 0
        assert run.num_offloads > 0
    return kept


def test_bandwidth_is_measured_unless_it_is_given(tmp_path):
    with remint.budget("1MiB", offload=Offload(bytes="1MiB", path=tmp_path)) as run:
        assert run.offload_bandwidth > 1e6
        assert run.offload_bandwidth != 1e9
    with remint.budget("1MiB", offload=Offload(bytes="1MiB", bandwidth="3GB")) as run:
        assert run.offload_bandwidth == 3e9


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(ValueError, match="not understood"):
        remint.budget("1GiB", offload="disc")
    with pytest.raises(ValueError, match="0 bytes"):
        remint.budget("1GiB", offload=0)
    with pytest.raises(ValueError, match="there is none"), remint.budget("1GiB", offload=tmp_path / "nowhere"):
        pass
    with pytest.raises(ValueError, match="one device"):
        remint.budget({"cpu": "1GiB", "cuda": "1GiB"}, offload="1GiB")
    with pytest.raises(ValueError, match="needs an arena"):
        remint.budget("1GiB", wall="soft", offload="1GiB")
    with pytest.raises(ValueError, match="bandwidth"):
        Offload(bandwidth=0)
    with pytest.raises(ValueError, match="use is one of"):
        Offload(use="both")  # type: ignore[arg-type]


@pytest.mark.parametrize("offload", ["disk", "64MiB", "folder"])
def test_ways_to_say_where(tmp_path, offload):
    where = tmp_path if offload == "folder" else offload
    with remint.budget("1MiB", offload=where, learn=False) as run:
        x = torch.nn.Parameter(torch.arange(1000.0))
        y = x * 2
        assert remint.evict(x)
        assert torch.equal(x * 2, y)
        assert run.num_offloads == run.num_fetches == 1
    assert run.transfer_seconds > 0
    assert run.transfer_wall_seconds > 0


@pytest.mark.slow
def test_command_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 256)).square().mean()
            loss.backward()
            optimizer.step()
        print(loss.item())
        """)
    )
    command = [sys.executable, "-m", "remint", "run", "--max-slowdown", "inf", "--budget"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}

    def output(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *args, str(script)], capture_output=True, text=True, timeout=120, env=env)

    full = output("1GiB", "-v")
    assert full.returncode == 0, full.stderr
    assert output("3MiB").returncode != 0
    small = output("3MiB", "--offload", "1GiB", "-v")
    assert small.returncode == 0, small.stderr
    assert small.stdout == full.stdout
    assert "offloaded" in small.stderr


@pytest.mark.runtime
def test_a_custom_op_that_reads_and_writes_what_is_offloaded():
    """Its nested calls see tensors that are none of its arguments; more memory is asked for in between."""
    hidden: dict[str, torch.Tensor] = {}

    @torch.library.custom_op("remint_offload_test::reads_hidden", mutates_args=())
    def reads_hidden(x: torch.Tensor) -> torch.Tensor:
        hidden["count"].add_(1)
        more = [torch.zeros(100_000) for _ in range(4)]
        count = hidden["count"].data_ptr()
        even_more = [torch.zeros(100_000) for _ in range(2)]
        assert hidden["count"].data_ptr() == count
        return x + hidden["weight"] + more[0][0] + even_more[0][0]

    with remint.budget("3MiB", costs=COSTS, offload=FAST, check=True, learn=False) as run:
        hidden["count"] = torch.zeros(10_000)
        hidden["weight"] = torch.nn.Parameter(torch.ones(10_000))
        grown = torch.nn.Parameter(torch.zeros(10_000))
        (hidden["weight"] * grown).sum().backward()
        hidden["count"] = hidden["weight"].grad
        x = torch.zeros(10_000)
        for number in range(5):
            assert remint.evict(hidden["weight"])
            assert remint.evict(hidden["count"]) == (number == 0), "its address is known after the first call"
            with torch.no_grad():
                x = reads_hidden(x)
        assert x[0].item() == 5
        assert hidden["count"][0].item() == 5
        assert run.num_fetches >= 6
