"""Hugging Face's Trainer with a callback: everything that `train()` allocates comes out of the budget."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import remint
from remint.integrations.transformers import BudgetCallback


def train(budget: int | str) -> tuple[float, remint.Run]:
    """Train three steps of a small GPT-2; return the loss and the run."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=256, n_positions=64)
    model = GPT2LMHeadModel(config)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(256, (12, 64))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=3,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            dataloader_pin_memory=False,
        )
        with BudgetCallback(budget) as callback:
            result = Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
    return result.training_loss, callback.run.finished()


loss, free = train("1GiB")
again, run = train(free.peak_bytes * 70 // 100)
print(run)
print("loss", loss, "the same bits:", loss == again)
assert loss == again
