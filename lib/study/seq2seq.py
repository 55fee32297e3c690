"""Batches and loss of encoder-decoder models."""

import torch
from torch import Tensor, nn


def pad(rows: list[list[int]], value: int) -> Tensor:
    """Rows of token ids as one tensor, filled up on the right. (B, longest)"""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def source_batch(model, sources: list[list[int]]) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, S) on the model's device."""
    lengths = torch.tensor([len(row) for row in sources])
    input_ids = pad(sources, model.config.pad_token_id)
    # from lengths: some models use their pad token as text
    mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": input_ids.to(model.device), "attention_mask": mask.to(model.device)}


def seq2seq_batch(model, sources: list[list[int]], targets: list[list[int]]) -> dict[str, Tensor]:
    """`source_batch` plus labels (B, T; -100 = padding) and decoder_input_ids (B, T), the labels
    shifted right behind the start token.
    """
    labels = pad(targets, -100).to(model.device)
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    return source_batch(model, sources) | {"labels": labels, "decoder_input_ids": shifted}


def seq2seq_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of a batch, and the number of labels (B, T) that are not -100."""
    inputs, labels = dict(batch), batch["labels"]
    inputs.pop("labels")
    logits = model(**inputs).logits.flatten(0, 1).float()  # (B·T, V)
    loss = nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
    return loss, (labels != -100).sum()
