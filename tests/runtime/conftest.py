import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
# The shared modules (models, training, random_tensors) are in the folder of the older tests.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "online")]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
