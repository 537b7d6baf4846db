"""Trainers of others inside a budget: the same bits, the budget ends with the training, figures go to loggers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import remint  # noqa: E402
from remint import BudgetError  # noqa: E402
from remint.integrations.loggers import log_step, step_figures  # noqa: E402
from remint.runtime import budget  # noqa: E402
from remint.torch_extension import load  # noqa: E402


def train_step(model: Any, x: Any) -> None:
    model(x).square().mean().backward()


@pytest.mark.smoke
def test_figures_are_of_the_step_since_the_last_time() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    x = torch.randn(512, 64)
    told = []
    with budget("1MiB") as run:
        for step in range(3):
            train_step(model, x)
            told.append(log_step(run, lambda figures, number: None, step))
        nothing = step_figures(run)
    assert sum(figures["remint/rematerializations"] for figures in told) == run.num_rematerializations > 0
    assert nothing["remint/rematerializations"] == 0
    assert all(figures["remint/peak_bytes"] <= 2**20 for figures in told)


class AddsScalars:
    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.found[name] = value
        self.step = step


class LogsMetrics:
    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.found, self.step = metrics, step


class Logs:
    def log(self, data: dict[str, float], step: int) -> None:
        self.found, self.step = data, step


@pytest.mark.parametrize("kind", [AddsScalars, LogsMetrics, Logs])
def test_writers_of_all_kinds(kind: Any) -> None:
    writer = kind()
    with budget("1MiB") as run:
        figures = log_step(run, writer, 7)
    assert writer.found == figures
    assert writer.step == 7
    with pytest.raises(ValueError, match="pass a function"):
        log_step(run, object(), 0)


def one_step_logged(writer: Any) -> dict[str, float]:
    model, x = torch.nn.Linear(64, 64), torch.randn(256, 64)
    with budget("1MiB") as run:
        train_step(model, x)
        return log_step(run, writer, 7)


def test_tensorboard_itself(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        figures = one_step_logged(writer)
    events = EventAccumulator(str(tmp_path)).Reload()
    for name, value in figures.items():
        (scalar,) = events.Scalars(name)
        assert (scalar.step, scalar.value) == (7, pytest.approx(value))


def test_mlflow_itself(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    with mlflow.start_run() as begun:
        figures = one_step_logged(mlflow)
    client = mlflow.MlflowClient()
    for name, value in figures.items():
        (metric,) = client.get_metric_history(begun.info.run_id, name)
        assert (metric.step, metric.value) == (7, pytest.approx(value))


def test_wandb_itself(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    with wandb.init(project="remint", dir=str(tmp_path), mode="offline") as begun:
        figures = one_step_logged(wandb)
        assert begun.step == 7
        begun.log({}, step=8)  # W&B keeps the figures of a step to itself until another one comes
        assert {name: begun.summary[name] for name in figures} == pytest.approx(figures)


def trainer(model: Any, callbacks: list[Any], folder: str) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    data = [{"input_ids": row, "labels": row} for row in torch.randint(64, (12, 32))]
    arguments = transformers.TrainingArguments(
        folder,
        max_steps=3,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        dataloader_pin_memory=False,
    )
    return transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks)


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
    return transformers.GPT2LMHeadModel(config)


def test_the_trainer_of_transformers() -> None:
    pytest.importorskip("transformers")
    from remint.integrations.transformers import BudgetCallback

    losses = []
    peak = None
    for nbytes in ("1GiB", None):
        written: list[int] = []
        callback = BudgetCallback(nbytes or int(0.8 * peak), writer=lambda figures, step: written.append(step))
        with tempfile.TemporaryDirectory() as folder:
            made = trainer(gpt2(), [callback], folder)
            losses.append(made.train().training_loss)
        assert not load().inside()
        assert any("remint/slowdown" in entry for entry in made.state.log_history)
        assert written[:3] == [1, 2, 3]
        peak = callback.run.peak_bytes
    assert losses[0] == losses[1]
    assert callback.run.num_rematerializations > 0


def test_a_training_that_fails_leaves_no_budget_open() -> None:
    pytest.importorskip("transformers")
    from remint.integrations.transformers import BudgetCallback

    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.raises(BudgetError),
        BudgetCallback("100KiB") as callback,
    ):
        trainer(gpt2(), [callback], folder).train()
    assert not load().inside()
    assert callback.run.status == "oom"


def test_the_trainer_of_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    from remint.integrations.lightning import Budget

    class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.net(batch[0]).square().mean()
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def fit(callback: Any) -> Any:
        torch.manual_seed(0)
        net = Net()
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1024, 64)), 256)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=CSVLogger(tmp_path),
            callbacks=[callback],
            log_every_n_steps=1,
            **quiet,
        ).fit(net, data)
        assert not load().inside()
        return net.losses

    free = Budget("1GiB")
    losses = fit(free)
    small = Budget(int(0.75 * free.run.peak_bytes))
    assert fit(small) == losses
    assert small.run.num_rematerializations > 0
    assert "remint/slowdown" in (tmp_path / "lightning_logs" / "version_1" / "metrics.csv").read_text()
    with pytest.raises(BudgetError):
        fit(Budget("70KiB"))
    assert not load().inside()


def test_compiled_models_beside_lightning_and_in_its_fabric() -> None:
    """Lightning replaces `torch.compile` as soon as it is imported, and copies what it is given."""
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    x = torch.randn(512, 64)

    def trained(prepare: Any) -> list[float]:
        torch.manual_seed(0)
        model = prepare(torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64)) for _ in range(8))))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if prepare is wrapped:
            model, optimizer = fabric.setup(model, optimizer)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def compiled(model: Any) -> Any:
        return remint.compile(model, budget="75%", costs="estimate", cache=False, progress=False)

    def wrapped(model: Any) -> Any:
        return compiled(model)

    assert trained(compiled) == trained(wrapped) == trained(lambda model: model)
