import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread_and_no_graphs_of_others():
    torch.set_num_threads(1)
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Costs are measured once for all tests."""
    return tmp_path_factory.mktemp("cache")
