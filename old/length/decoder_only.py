"""Any causal language model of transformers, with a length signal added to its token embeddings at one point.

X = E + gate * signal(step, l). On the prompt step is 0 (the progress ratio: ξ(0)); at its last token, which predicts the first token of the
response, 1; and l at the input that must predict EOS. l counts every token of the response, EOS included.

    column         0 ... P - 2   P - 1          P ...          P + l - 2
    input          prompt        its last token response       its last token before EOS
    predicts                     token 1        token 2 ...    token l (EOS)
    step           0             1              2 ...          l

Prompts are padded on the left, so that all of a batch end in the same column P - 1; responses on the right. X is handed to the stock model
as `inputs_embeds`, which adds learned positions (GPT-2) or turns queries and keys (Llama). No modelling file is copied. A model that
multiplies what it is handed (Granite) does so with E and signal alike.

The gate keeps the signal, of norm sqrt(d/2), from swamping the embeddings of a pretrained model:
- "tanh": tanh(g), g one learned scalar that starts at 0, so that training starts from the stock model. From the PRE paper, for its
  decoder-only variant (Botcazou et al., arXiv 2512.06938), as is ξ(0) on the prompt;
- "scaled": this study's. A fixed factor, with which a signal of norm sqrt(d/2) has SHARE of the mean norm of the token embeddings. Found on
  loading, remembered in the configuration.
"""

import inspect
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from old.length.control import LengthControl, check_target_length
from old.length.prompts import NumberedPrompt
from old.seq2seq import pad

GATES = ("tanh", "scaled")
SHARE = 0.5  # of "scaled": of what was tried on SmolLM2-135M, 0.25 was not learned to be read as fast, and 1 destroys the text
_ARGUMENTS = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "logits_to_keep"}  # a model's forward must have


def check_decoder_only(base: type, length_signal: dict) -> None:
    """Raise ValueError unless the stock class `base` and what a configuration says of its signal fit this module."""
    if missing := _ARGUMENTS - set(inspect.signature(base.forward).parameters):
        raise ValueError(f"{base.__name__} does not take {', '.join(sorted(missing))}: length control needs a model that does")
    if length_signal["gate"] not in GATES:
        raise ValueError(f"unknown gate {length_signal['gate']!r}: choose one of {', '.join(GATES)}")
    if "counted" in length_signal:
        raise ValueError(f"lengths of a decoder-only model count tokens, not {length_signal['counted']}")


class TanhGate(nn.Module):
    """tanh(g) times the signal. g is one learned scalar and starts at 0."""

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.g)

    def forward(self, signal: Tensor) -> Tensor:
        return torch.tanh(self.g) * signal


class DecoderOnlyMixin(LengthControl):
    """What is added to a stock causal class: signal and gate, `target_length` in `forward` and `generate`, and the batches both need."""

    decoded_at_once = 32  # every row costs a pass through a large model until the longest of the batch has ended

    def __init__(self, config: PretrainedConfig, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        if config.length_signal["gate"] == "tanh":
            self.gate = TanhGate()
        self.numbered: NumberedPrompt | None = None  # puts the requested length into a prompt, for the signal that does so

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, TanhGate):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    def complete(self, tokenizer: Callable[[], object]) -> None:
        if self.length_signal.in_prompt:
            self.numbered = NumberedPrompt(tokenizer())
        if self.gate is None and "scale" not in self.config.length_signal:
            embeddings = self.get_input_embeddings().weight.detach().float()  # (V, d)
            self.config.length_signal["scale"] = SHARE * embeddings.norm(dim=1).mean().item() / math.sqrt(embeddings.shape[1] / 2)

    # ---- the model -------------------------------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Tensor | None = None,  # (B, T)
        attention_mask: Tensor | None = None,  # (B, T), with a cache also of what it holds
        position_ids: Tensor | None = None,  # (B, T)
        cache=None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        target_length: Tensor | None = None,  # (B,), without it the model is uncontrolled
        prompt_width: int | Tensor | None = None,  # P, columns of the padded prompts; in a batch for training a tensor ()
        **kwargs,
    ):
        """Stock forward plus `target_length`, the number of tokens of the response, EOS included, behind prompts of P columns.

        Raises ValueError for labels of the response alone, as `pair_batch` makes them: the stock loss would shift them once more.
        """
        if labels is not None and prompt_width is not None:
            raise ValueError("labels of the response are not for the stock loss: give them to lib.seq2seq.seq2seq_loss")
        if target_length is not None:
            if input_ids is None or prompt_width is None:
                raise ValueError("target_length needs input_ids and prompt_width beside it")
            check_target_length(target_length, len(input_ids))
            step = self._steps(input_ids, cache, prompt_width)
            kwargs["inputs_embeds"] = self._controlled_embeddings(input_ids, step, target_length.to(input_ids.device))
            input_ids = None
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            labels=labels,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )

    def _steps(self, input_ids: Tensor, cache, prompt_width: int | Tensor) -> Tensor:
        """0 on the prompt, 1 at its last column, then 2, 3, ... (T,)"""
        seen = cache.get_seq_length() if cache is not None else 0
        column = torch.arange(seen, seen + input_ids.shape[1], device=input_ids.device)
        return (column - prompt_width + 2).clamp(min=0)

    def _controlled_embeddings(self, input_ids: Tensor, step: Tensor, target_length: Tensor) -> Tensor:
        """E + gate * signal. (B, T), (T,), (B,) -> (B, T, d)"""
        embeddings, signal = self.get_input_embeddings()(input_ids), self.length_signal(step, target_length)
        gated = self.gate(signal) if self.gate is not None else self.config.length_signal["scale"] * signal
        return embeddings + gated.to(embeddings.dtype)

    # ---- generation ------------------------------------------------------------------------------------------------------------------

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args, target_length: Tensor | None = None, prompt_width: int | None = None, **kwargs
    ) -> dict:
        """Stock inputs of the next step, the request among them."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        return inputs if target_length is None else inputs | {"target_length": target_length, "prompt_width": prompt_width}

    def generate(self, inputs: Tensor | None = None, *, target_length: Tensor | None = None, **kwargs):
        """As in LengthControl.generate. Raises ValueError for a request without input_ids or with prompts padded on the right."""
        if target_length is not None:
            prompts, mask = inputs if inputs is not None else kwargs.get("input_ids"), kwargs.get("attention_mask")
            if prompts is None:
                raise ValueError("target_length needs input_ids beside it: the prompts, padded on the left")
            if mask is not None and mask.shape[-1] and not mask[:, -1].all():
                raise ValueError("prompts must be padded on the left, so that all of them end where the responses begin")
            kwargs["prompt_width"] = prompts.shape[-1]
        return super().generate(inputs, target_length=target_length, **kwargs)

    def most_target_tokens(self, source_width: int) -> int | None:
        """What prompts of that width leave of the context, or None for a model without a limit."""
        context = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return None if context is None else max(0, context - source_width)

    # ---- batches ---------------------------------------------------------------------------------------------------------------------

    def source_batch(self, sources: list[list[int]], target_length: Tensor | None = None) -> dict[str, Tensor]:
        """Inputs of `generate` for prompts: input_ids, attention_mask (B, P), padded on the left; target_length (B,) if there is one."""
        batch = self._left_padded(self._prompts(sources, target_length))
        return batch if target_length is None else batch | {"target_length": target_length.to(self.device)}

    def pair_batch(self, sources: list[list[int]], targets: list[list[int]], target_length: Tensor | None = None) -> dict[str, Tensor]:
        """Inputs of `forward` under teacher forcing, for prompts and responses (EOS at the end), and labels (B, T) of the responses.

        input_ids, attention_mask, position_ids (B, P + T - 1): nothing follows the last token of the longest response, so it is no input.
        `logits_to_keep` (T,) are the columns that predict responses, so that logits are (B, T, V) and none are computed for the prompt.
        """
        prompts, labels = self._left_padded(self._prompts(sources, target_length)), pad(targets, -100).to(self.device)
        width, steps = prompts["input_ids"].shape[1], labels.shape[1]
        mask = torch.cat([prompts["attention_mask"], (labels[:, :-1] != -100).long()], 1)
        batch = {
            "input_ids": torch.cat([prompts["input_ids"], labels[:, :-1].clamp(min=0)], 1),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "labels": labels,
            "logits_to_keep": torch.arange(width - 1, width - 1 + steps, device=self.device),
            "prompt_width": torch.tensor(width, device=self.device),
        }
        return batch if target_length is None else batch | {"target_length": target_length.to(self.device)}

    def _prompts(self, sources: list[list[int]], target_length: Tensor | None) -> list[list[int]]:
        if self.numbered is None or target_length is None:
            return sources
        return [self.numbered(row, length) for row, length in zip(sources, target_length.tolist())]

    def _left_padded(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, P). Padding is told by the mask alone: many models have no token of their own for it."""
        reverse = [row[::-1] for row in rows]
        input_ids, mask = pad(reverse, 0).flip(1), pad([[1] * len(row) for row in rows], 0).flip(1)
        return {"input_ids": input_ids.to(self.device), "attention_mask": mask.to(self.device)}

    @staticmethod
    def prompt_length(batch: dict[str, Tensor]) -> int:
        """Tokens in front of the first new one in what `generate` returns for a batch: the padded prompt."""
        return batch["input_ids"].shape[1]

    @staticmethod
    def widest_input(source_tokens: np.ndarray, target_tokens: np.ndarray) -> np.ndarray:
        """Tokens that the model reads of each pair: prompt and response. (N,), (N,) -> (N,)"""
        return source_tokens + target_tokens
