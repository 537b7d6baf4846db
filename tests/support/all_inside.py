"""Training of which everything is inside the budget: the model, its data, and the state of its optimizer."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import remint
from tests.support.models import CASES, TRANSFORMERS
from tests.support.training import Case, optimizer_for


def wide() -> Case:
    """Mostly weights: with their gradients and Adam's state, nearly all of its memory cannot be recomputed."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.ReLU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers, nn.Linear(192, 10))
    x, y = torch.randn(32, 192), torch.randint(0, 10, (32,))
    return model, lambda m: functional.cross_entropy(m(x), y)


def convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 3, 2], num_labels=10)
    x, y = torch.randn(2, 3, 64, 64), torch.randint(0, 10, (2,))
    return ConvNextForImageClassification(config).train(), lambda m: m(pixel_values=x, labels=y).loss


def segformer() -> Case:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 2], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=64,
        num_labels=5,
    )  # fmt: skip
    x, y = torch.randn(2, 3, 64, 64), torch.randint(0, 5, (2, 64, 64))
    return SegformerForSemanticSegmentation(config).train(), lambda m: m(pixel_values=x, labels=y).loss


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of low rank (LoRA)."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


def lora_llama() -> Case:
    model, loss_of = TRANSFORMERS["llama"]()
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj)
    return model, loss_of


NEED_TRANSFORMERS = {**TRANSFORMERS, "convnext": convnext, "segformer": segformer, "lora_llama": lora_llama}
ALL = CASES | NEED_TRANSFORMERS | {"wide": wide}


def train_inside(name: str, inside=None, *, optimizer: str = "adam", steps: int = 3, device: str = "cpu"):
    """Make the model, its optimizer and its data inside, and train; return all numbers, and the run."""
    if name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    with torch.device(device) if device != "cpu" else contextlib.nullcontext():
        if inside is None:
            found, run = train_here(name, optimizer, steps), None
        else:
            with inside as run:
                found = train_here(name, optimizer, steps)
    return {key: value.cpu() for key, value in found.items()}, run


def train_here(name: str, optimizer: str, steps: int) -> dict[str, torch.Tensor]:
    model, loss_of = ALL[name]()
    steppable = optimizer_for(optimizer, model)
    found = {}
    for step in range(steps):
        steppable.zero_grad()
        loss = loss_of(model)
        loss.backward()
        steppable.step()
        found[f"loss {step}"] = loss.detach()
    found |= {key: value.detach() for key, value in model.state_dict().items()}
    found |= {f"{key}.grad": p.grad for key, p in model.named_parameters() if p.grad is not None}
    for index, (_, slots) in enumerate(copy.copy(steppable.state_dict()["state"]).items()):
        found |= {f"optimizer.{index}.{key}": value for key, value in slots.items() if torch.is_tensor(value)}
    return found


def state_away_between_steps(
    inside, optimizer: str, device: str = "cpu"
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train `wide`; return its numbers, and after each backward pass which part of the optimizer's bytes is away."""
    torch.manual_seed(0)
    away = []
    with (
        torch.device(device) if device != "cpu" else contextlib.nullcontext(),
        contextlib.nullcontext() if inside is None else inside,
    ):
        model, loss_of = wide()
        steppable = optimizer_for(optimizer, model)
        for _ in range(4):
            steppable.zero_grad()
            loss_of(model).backward()
            # Numbers are no tensors of the budget.
            state = [v for slots in steppable.state.values() for v in slots.values() if torch.is_tensor(v) and v.dim()]
            gone = [v.nbytes for v in state if not remint.is_resident(v)] if inside is not None else []
            away.append(sum(gone) / max(1, sum(v.nbytes for v in state)))
            steppable.step()
        found = {key: value.detach() for key, value in model.state_dict().items()}
    return {key: value.cpu() for key, value in found.items()}, away


def assert_same_numbers(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(value, found[key]), key
