"""Parameters that the program frees and has again, as FSDP does: recipes that read them wait for the same bytes."""

import pytest
import torch

import remint

ROWS, COLUMNS = 100, 1000
WEIGHT_BYTES = 4 * COLUMNS * COLUMNS
BUDGET = 3 * WEIGHT_BYTES


class Block:
    """`tanh(x @ w) @ v`; `w` has 4 MB and is freed and written again."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.numbers = torch.randn(COLUMNS, COLUMNS, generator=generator)
        self.x = torch.randn(ROWS, COLUMNS, generator=generator)
        self.v = torch.randn(COLUMNS, COLUMNS, generator=generator)
        self.expected = torch.mm(self.x, self.numbers)

    def forward(self):
        self.w = torch.empty(COLUMNS, COLUMNS).copy_(self.numbers).requires_grad_()
        self.inner = torch.mm(self.x, self.w)
        self.out = torch.mm(self.inner.tanh(), self.v)

    def free(self):
        self.w.untyped_storage().resize_(0)

    def gather(self, numbers):
        with torch.no_grad():
            self.w.untyped_storage().resize_(WEIGHT_BYTES)
            self.w.copy_(numbers)


def same(a, b):
    """What the forward reads later would stay in memory: a backward reads like this."""
    with torch.no_grad():
        return torch.equal(a, b)


def squeeze(run):
    """Take all memory but half of what the weight has."""
    filler = torch.empty((BUDGET - run.pinned_bytes + WEIGHT_BYTES // 2) // 4)
    filler.zero_()
    return filler


@pytest.fixture
def block():
    return Block()


def opened(**options):
    return remint.budget(BUDGET, learn=False, check=True, max_slowdown=None, **options)


def test_a_weight_that_is_back_with_the_same_bytes_is_read_instead(block):
    with opened() as run:
        block.forward()
        block.free()
        assert remint.evict(block.inner)
        filler = squeeze(run)  # the weight goes
        assert run.used_bytes < filler.nbytes + WEIGHT_BYTES // 2
        del filler
        block.gather(block.numbers)
        assert same(block.inner, block.expected)
        # It can be recomputed again, from the weight that is there now.
        assert remint.evict(block.inner)
        assert same(block.inner, block.expected)


def test_the_weight_stays_while_there_is_room(block):
    with opened():
        block.forward()
        block.free()
        assert remint.evict(block.inner)
        assert same(block.inner, block.expected)


@pytest.mark.parametrize("again", [False, True])
def test_other_bytes_are_never_read(block, again):
    """A weight that is not back, or has changed meanwhile: an error, and no wrong number."""
    with opened() as run:
        block.forward()
        block.free()
        assert remint.evict(block.inner)
        filler = squeeze(run)
        if again:
            del filler
            block.gather(block.numbers.nextafter(torch.tensor(9.0)))
        with pytest.raises(remint.BudgetError, match="parameters that FSDP has freed"), torch.no_grad():
            block.inner.sum().item()
        block.inner = None


def test_what_goes_on_to_the_next_block_stays(block):
    expected = torch.mm(block.expected.tanh(), block.v)
    with opened() as run:
        block.forward()
        block.free()
        assert not remint.evict(block.out)
        assert remint.evict(block.inner)
        filler = squeeze(run)
        assert same(block.out, expected)
        del filler
        block.gather(block.numbers)
        assert same(block.inner, block.expected)


def test_what_a_later_op_reads_stays(block):
    """A block can have several results: the next one reads them when the weight has been freed."""
    with opened() as run:
        block.forward()
        block.free()
        assert remint.evict(block.inner)
        later = block.inner * 2
        assert not remint.evict(block.inner)
        # Nothing reads the weight any more.
        assert run.used_bytes < WEIGHT_BYTES
        assert same(later, block.expected * 2)


def test_a_weight_that_came_back_once_goes_first(block):
    """From then on it is as without a budget: it goes before anything is evicted."""
    evicted = []
    with opened() as run:
        block.forward()
        for number in range(2):
            kept = [torch.mm(block.x, block.w).tanh() for _ in range(4)]
            out = torch.mm(kept[-1], block.v)
            block.free()
            if number == 0:
                assert remint.evict(kept[0])
            before = run.num_evictions
            # Either the weight has to go, or some of the results.
            torch.empty((BUDGET - run.used_bytes + WEIGHT_BYTES // 20) // 4).zero_()
            evicted.append(run.num_evictions - before)
            if number == 0:
                squeeze(run)
            del out
            block.gather(block.numbers)
            assert all(same(each, block.expected.tanh()) for each in kept)
    assert evicted[0] > 0
    assert evicted[1] == 0


def test_weights_without_gradients_are_no_such_sources(block):
    """Only what autograd needs is sure to be gathered again. What was computed from others is kept, or they are."""
    with opened() as run, torch.no_grad():
        block.forward()
        block.free()
        remint.evict(block.inner)
        with pytest.raises(remint.BudgetError):
            squeeze(run)
        assert same(block.inner, block.expected)
