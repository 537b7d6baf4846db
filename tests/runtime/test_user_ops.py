"""Ops of users: they read and write through numpy or addresses, run ops, and use tensors that are no arguments."""

import numpy as np
import pytest
import torch

import remint
from tests.support.isolated import isolated

_calls = []


@torch.library.custom_op("remint_values::double_by_numpy_", mutates_args=("x",))
def double_by_numpy_(x: torch.Tensor) -> None:
    array = x.numpy()
    array *= 2


@torch.library.custom_op("remint_values::swap_by_numpy_", mutates_args=("x", "y"))
def swap_by_numpy_(x: torch.Tensor, y: torch.Tensor) -> None:
    a, b = x.numpy(), y.numpy()
    a[:], b[:] = b.copy(), a.copy()


@torch.library.custom_op("remint_values::sum_by_numpy", mutates_args=())
def sum_by_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() + 1)


@torch.library.custom_op("remint_values::by_address", mutates_args=())
def by_address(x: torch.Tensor) -> torch.Tensor:
    import ctypes

    values = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    return torch.tensor(np.frombuffer(values, dtype=np.float32) + 1)


@torch.library.custom_op("remint_values::with_ops", mutates_args=())
def with_ops(x: torch.Tensor) -> torch.Tensor:
    """Ops of torch before and after the address is taken, and large temporaries."""
    y = torch.cat([x, x]).sin()
    array = x.numpy()
    z = y[: x.numel()].exp() + y[x.numel() :]
    return z + torch.from_numpy(array.copy())


@torch.library.custom_op("remint_values::halfway", mutates_args=())
def halfway(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.numpy()
    x.numpy()
    raise ValueError("halfway")


_captured = []


@torch.library.custom_op("remint_values::captured", mutates_args=())
def captured(x: torch.Tensor) -> torch.Tensor:
    """Reads a tensor that is not an argument."""
    _calls.append("captured")
    return x + torch.from_numpy(_captured[0].numpy().copy())


@torch.library.custom_op("remint_values::captured_op", mutates_args=())
def captured_op(x: torch.Tensor) -> torch.Tensor:
    return x + _captured[0]


@torch.library.custom_op("remint_values::captured_write", mutates_args=())
def captured_write(x: torch.Tensor) -> torch.Tensor:
    _captured[0].add_(1)
    return x * 2


CAPTURED = {"captured": captured, "captured_op": captured_op}


@isolated(60)
def test_a_user_op_writes_through_numpy():
    with remint.budget("4MiB", check=True):
        x = torch.arange(1000.0) * 1
        before = x * 3
        later = before + 1
        assert remint.evict(before)
        assert remint.evict(later)
        double_by_numpy_(x)
        assert torch.equal(later, torch.arange(1000.0) * 3 + 1)
        assert torch.equal(before, torch.arange(1000.0) * 3)
        remint.evict(x)
        assert torch.equal(x, torch.arange(1000.0) * 2)
        after = x + 1
        remint.evict(after)
        double_by_numpy_(x)
        assert torch.equal(after, torch.arange(1000.0) * 2 + 1)
        assert torch.equal(x, torch.arange(1000.0) * 4)


@pytest.mark.parametrize("evict_arguments", [False, True])
@isolated(60)
def test_a_user_op_writes_two_values_of_a_chain_through_numpy(evict_arguments):
    with remint.budget("4MiB", check=True):
        x = torch.arange(1000.0) * 1
        y = x * 3
        z = y + x
        assert remint.evict(z)
        if evict_arguments:
            remint.evict(y)
            remint.evict(x)
        swap_by_numpy_(x, y)
        assert torch.equal(z, torch.arange(1000.0) * 4)
        assert torch.equal(x, torch.arange(1000.0) * 3)
        assert torch.equal(y, torch.arange(1000.0))
        remint.evict(x)
        remint.evict(y)
        assert torch.equal(x, torch.arange(1000.0) * 3)
        assert torch.equal(y, torch.arange(1000.0))


@isolated(60)
def test_a_user_op_writes_a_constant_through_numpy():
    x = torch.arange(1000.0)
    with remint.budget("4MiB", check=True):
        y = x * 3
        assert remint.evict(y)
        double_by_numpy_(x)
        assert torch.equal(y, torch.arange(1000.0) * 3)
        assert torch.equal(x, torch.arange(1000.0) * 2)


USER_OPS = {"sum_by_numpy": sum_by_numpy, "by_address": by_address, "with_ops": with_ops, "halfway": halfway}


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "same"])
@pytest.mark.parametrize("name", USER_OPS)
@isolated(60)
def test_a_user_op_leaves_no_lock_behind(name, fresh):
    """40 calls on 0.2 MB each in 4 MiB: if inputs stayed locked, the fresh ones would not fit."""
    op, plain = USER_OPS[name], torch.randn(50_000)
    expected = None if name == "halfway" else op(plain)
    x = None
    with remint.budget("4MiB", check=True) as run:
        used = run.used_bytes
        for k in range(40):
            if fresh or x is None:
                x = plain * 1
            remint.evict(x)
            if name == "halfway":
                with pytest.raises(ValueError, match="halfway"):
                    op(x)
            else:
                assert torch.equal(op(x), expected), k
        assert torch.equal(x, plain)
        x = None
        assert run.used_bytes == used
    assert run.peak_bytes <= run.budget_bytes


@pytest.mark.parametrize("name", ["captured", "captured_op"])
@isolated(60)
def test_a_user_op_reads_a_tensor_that_is_not_an_argument(name):
    plain = torch.arange(1000.0)
    with remint.budget("1MiB", check=True):
        _captured[:] = [plain * 3]
        x = plain * 1
        remint.evict(x)
        remint.evict(_captured[0])
        y = CAPTURED[name](x)
        assert torch.equal(y, plain * 4)
        assert torch.equal(_captured[0], plain * 3)


@pytest.mark.parametrize("name", ["captured", "captured_op"])
@isolated(60)
def test_a_tensor_that_is_not_an_argument_changes_later(name):
    """Nothing says that the output depends on it. A replay would see the new numbers: right, or a clear error."""
    plain = torch.arange(1000.0)
    with remint.budget("1MiB", check=True):
        _captured[:] = [plain * 3]
        y = CAPTURED[name](plain * 1)
        remint.evict(y)
        _captured[0].zero_()
        remint.evict(_captured[0])
        try:
            found = y + 0
        except RuntimeError as error:
            assert "remint" in str(error)  # noqa: PT017
        else:
            assert torch.equal(found, plain * 4)
        del y


@isolated(60)
def test_a_user_op_writes_a_tensor_that_is_not_an_argument():
    plain = torch.arange(1000.0)
    with remint.budget("1MiB", check=True):
        _captured[:] = [plain * 3]
        before = _captured[0] + 1
        remint.evict(before)
        # It says that it writes nothing: right, or a clear error.
        try:
            y = captured_write(plain * 1)
        except RuntimeError as error:
            assert "Make it an argument and declare it in mutates_args" in str(error)  # noqa: PT017
        else:
            remint.evict(y)
            assert torch.equal(y, plain * 2)
            assert torch.equal(_captured[0], plain * 3 + 1)
        assert torch.equal(before, plain * 3 + 1)


def test_addresses_taken_in_autograd_functions():
    class ByNumpy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.from_numpy(np.sin(x.detach().numpy()))

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * torch.from_numpy(np.cos(x.detach().numpy()))

    plain = torch.randn(1000)

    def program():
        leaf = plain.clone().requires_grad_()
        out = ByNumpy.apply(leaf * 2)
        out.square().sum().backward()
        return out.detach(), leaf.grad

    expected = program()
    with remint.budget("1MiB", chaos=True, check=True):
        found = program()
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
