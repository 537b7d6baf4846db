"""Models to train: each entry of CASES returns a model and a function that computes its loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from tests.support.training import Case


def mlp() -> Case:
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    x, y = torch.randn(1024, 64), torch.randint(0, 10, (1024,))
    return model, lambda m: functional.cross_entropy(m(x), y)


def resnet() -> Case:
    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(outputs)
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = functional.relu(self.norm1(self.conv1(x)), inplace=True)
            out = self.norm2(self.conv2(out))
            out += self.shortcut(x)
            return functional.relu(out, inplace=True)

    blocks = [*(Block(8, 8) for _ in range(8)), Block(8, 16, 2), *(Block(16, 16) for _ in range(3))]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 10)
    )
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    return model, lambda m: functional.cross_entropy(m(x), y)


def unet() -> Case:
    def block(inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for width in (inputs, outputs, outputs, outputs):
            layers += [nn.Conv2d(width, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, nn.Dropout2d(0.1))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2, self.middle = block(3, 8), block(8, 16), block(16, 16)
            self.up2, self.up1, self.head = block(32, 8), block(16, 8), nn.Conv2d(8, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.down1(x)
            b = self.down2(functional.max_pool2d(a, 2))
            y = functional.interpolate(self.middle(functional.max_pool2d(b, 2)), scale_factor=2)
            y = functional.interpolate(self.up2(torch.cat([y, b], 1)), scale_factor=2)
            return self.head(self.up1(torch.cat([y, a], 1)))

    x, y = torch.randn(4, 3, 48, 48), torch.randn(4, 3, 48, 48)
    return UNet(), lambda m: functional.mse_loss(m(x), y)


def densenet() -> Case:
    class Dense(nn.Module):
        def __init__(self, width: int, layers: int = 4, growth: int = 4) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.BatchNorm2d(width + growth * i) for i in range(layers))
            self.convs = nn.ModuleList(nn.Conv2d(width + growth * i, growth, 3, padding=1) for i in range(layers))
            self.transition = nn.Conv2d(width + growth * layers, width, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = [x]
            for norm, conv in zip(self.norms, self.convs, strict=True):
                features.append(conv(functional.relu(norm(torch.cat(features, 1)))))
            return self.transition(torch.cat(features, 1))

    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *(Dense(8) for _ in range(4)))
    x, y = torch.randn(8, 3, 16, 16), torch.randn(8, 8, 16, 16)
    return model, lambda m: functional.mse_loss(m(x), y)


def lstm() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(24, 24, num_layers=8, dropout=0.1, batch_first=True)
            self.head = nn.Linear(24, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    x, y = torch.randn(64, 12, 24), torch.randint(0, 4, (64,))
    return Model(), lambda m: functional.cross_entropy(m(x), y)


def lstm_cell() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(16, 32)
            self.head = nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = c = x.new_zeros(x.shape[0], 32)
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
            return self.head(h)

    x, y = torch.randn(128, 24, 16), torch.randint(0, 4, (128,))
    return Model(), lambda m: functional.cross_entropy(m(x), y)


def tree_lstm() -> Case:
    class TreeLSTM(nn.Module):
        """Its control flow is the tree it is given."""

        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.leaf = nn.Linear(8, width)
            self.gates = nn.Linear(2 * width, 5 * width)
            self.head = nn.Linear(width, 3)

        def node(self, tree: object) -> tuple[torch.Tensor, torch.Tensor]:
            if isinstance(tree, torch.Tensor):
                h = torch.tanh(self.leaf(tree))
                return h, h
            (lh, lc), (rh, rc) = (self.node(child) for child in tree)
            i, left, right, o, u = self.gates(torch.cat([lh, rh], -1)).chunk(5, -1)
            c = i.sigmoid() * u.tanh() + left.sigmoid() * lc + right.sigmoid() * rc
            return o.sigmoid() * c.tanh(), c

        def forward(self, tree: object) -> torch.Tensor:
            return self.head(self.node(tree)[0])

    def tree(depth: int, lean: int) -> object:
        if depth == 0:
            return torch.randn(128, 8)
        return [tree(depth - 1, lean), tree(max(depth - 1 - lean, 0), lean)]

    trees, y = [tree(4, 0), tree(6, 2)], torch.randint(0, 3, (128,))
    return TreeLSTM(), lambda m: sum(functional.cross_entropy(m(t), y) for t in trees)


def transformer() -> Case:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.TransformerEncoder(layer, 5, enable_nested_tensor=False), nn.Linear(32, 16)
    )
    x, y = torch.randn(8, 48, 16), torch.randn(8, 48, 16)
    return model, lambda m: functional.mse_loss(m(x), y)


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case for case in (mlp, resnet, unet, densenet, lstm, lstm_cell, tree_lstm, transformer)
}


def _gpt2(attention: str) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=97, n_positions=48, n_embd=32, n_layer=5, n_head=4, attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    ids = torch.randint(0, 97, (8, 48))
    return GPT2LMHeadModel(config).train(), lambda m: m(input_ids=ids, labels=ids).loss


def gpt2_eager() -> Case:
    return _gpt2("eager")


def gpt2_sdpa() -> Case:
    return _gpt2("sdpa")


def bert() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=5, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=48,
    )  # fmt: skip
    ids, y = torch.randint(0, 97, (8, 48)), torch.randint(0, 2, (8,))
    mask = torch.ones_like(ids)
    mask[:, 40:] = 0
    return BertForSequenceClassification(config).train(), lambda m: m(input_ids=ids, attention_mask=mask, labels=y).loss


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=97,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
        use_cache=False,
    )
    ids, labels = torch.randint(0, 97, (8, 40)), torch.randint(0, 97, (8, 32))
    return T5ForConditionalGeneration(config).train(), lambda m: m(input_ids=ids, labels=labels).loss


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=5, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=4,
        hidden_dropout_prob=0.1, num_labels=5,
    )  # fmt: skip
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 5, (8,))
    return ViTForImageClassification(config).train(), lambda m: m(pixel_values=x, labels=y).loss


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=48, use_cache=False,
    )  # fmt: skip
    ids = torch.randint(0, 97, (8, 48))
    return LlamaForCausalLM(config).train(), lambda m: m(input_ids=ids, labels=ids).loss


TRANSFORMERS: dict[str, Callable[[], Case]] = {
    case.__name__: case for case in (gpt2_eager, gpt2_sdpa, bert, t5, vit, llama)
}
