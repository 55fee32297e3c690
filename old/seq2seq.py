"""Batches and loss of encoder-decoder models, shared by everything here that trains one."""

import torch
from torch import Tensor, nn


def pad(rows: list[list[int]], value: int) -> Tensor:
    """Rows of token ids as one tensor, filled up on the right. (B, longest)"""
    return nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=value)


def source_batch(model, sources: list[list[int]]) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, S) on the model's device."""
    lengths = torch.tensor([len(row) for row in sources])
    input_ids = pad(sources, model.config.pad_token_id)
    mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()  # from lengths: some models use their pad token as text
    return {"input_ids": input_ids.to(model.device), "attention_mask": mask.to(model.device)}


def seq2seq_batch(model, sources: list[list[int]], targets: list[list[int]]) -> dict[str, Tensor]:
    """`source_batch` plus labels (B, T; -100 = padding) and decoder_input_ids (B, T), the labels shifted right behind the start token."""
    labels = pad(targets, -100).to(model.device)
    return {**source_batch(model, sources), "labels": labels, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}


def seq2seq_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of an encoder-decoder, and the number of labels (B, T) that count (those that are not -100)."""
    labels = batch["labels"]
    logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits  # (B, T, V)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum")
    return loss, (labels != -100).sum()
