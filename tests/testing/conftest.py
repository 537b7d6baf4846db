import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def device():
    """The test device, with random delays and poison."""
    from remint.testing import accelerator

    name = accelerator.load(devices=2, delay_us=200)
    yield name
    torch.accelerator.synchronize()
