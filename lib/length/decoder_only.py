"""Any causal language model of transformers, with a length signal added to its token embeddings.

X = E + gate * signal(step, l). On the prompt step is 0 (the progress ratio: ξ(0)); at its last
token, which predicts the first token of the response, 1; and l at the input that must predict EOS.
l counts every token of the response, EOS included.

    column         0 ... P - 2   P - 1          P ...          P + l - 2
    input          prompt        its last token response       its last token before EOS
    predicts                     token 1        token 2 ...    token l (EOS)
    step           0             1              2 ...          l

Prompts are padded on the left, responses on the right. The gate keeps the signal, of norm
sqrt(d/2), from swamping the embeddings of a pretrained model:
- "tanh": tanh(g), g learned, at first 0. As ξ(0) on the prompt from the PRE paper's decoder-only
  variant (Botcazou et al., arXiv 2512.06938);
- "scaled": this study's; fixed, the signal has SHARE of the mean norm of the token embeddings.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from lib.length.control import LengthControl, check_target_length
from lib.study.models import pad, start_of_text, token_ids

GATES = ("tanh", "scaled")
SHARE = 0.5  # of those tried on SmolLM2-135M, 0.25 was learned more slowly, 1 destroys the text
RANK, ALPHA = 16, 32  # of LoRA: an update is (ALPHA / RANK) B A; B starts at 0
Ids = list[list[int]]
Batch = dict[str, Tensor]


def check_decoder_only(base: type, length_signal: dict) -> None:
    """ValueError unless stock class and configuration of the signal fit this module."""
    needed = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "logits_to_keep"}
    if missing := needed - set(inspect.signature(base.forward).parameters):
        raise ValueError(f"{base.__name__} does not take {', '.join(sorted(missing))}")
    if (gate := length_signal["gate"]) not in GATES:
        raise ValueError(f"unknown gate {gate!r}: choose one of {', '.join(GATES)}")
    if counted := length_signal.get("counted"):
        raise ValueError(f"lengths of a decoder-only model count tokens, not {counted}")


class DecoderOnlyMixin(LengthControl):
    """What is added to a stock causal class: signal and gate, and the batches both need."""

    decoded_at_once = 32  # each costs a pass through a large model until the longest has ended

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        if config.length_signal["gate"] == "tanh":
            self.gate = nn.ParameterDict({"g": torch.zeros(())})
        self.numbered: Callable[[list[int], int], list[int]] | None = None

    def _init_weights(self, module: nn.Module) -> None:
        if module is getattr(self, "gate", None):
            nn.init.zeros_(module["g"])
        else:
            super()._init_weights(module)

    def complete(self, tokenizer: Callable[[], object]) -> None:
        own = self.config.length_signal
        if own["name"] == "number-in-prompt":
            self.numbered = partial(numbered_prompt, tokenizer())
        if own["gate"] == "scaled" and "scale" not in own:
            weight = self.get_input_embeddings().weight.detach().float()  # (V, d)
            own["scale"] = SHARE * weight.norm(dim=1).mean().item() / math.sqrt(weight.shape[1] / 2)

    def forward(
        self,
        input_ids: Tensor | None = None,  # (B, T), as are the next two
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache=None,
        labels: Tensor | None = None,
        target_length: Tensor | None = None,  # (B,), without it the model is uncontrolled
        prompt_width: int | Tensor | None = None,  # P; in a batch for training a tensor ()
        logits_to_keep: int | Tensor = 0,
        **kwargs,
    ):
        """Stock forward plus `target_length`, tokens of the response behind P columns of prompt."""
        if labels is not None and prompt_width is not None:  # it would shift them once more
            raise ValueError("labels of responses are not for the stock loss: use seq2seq_loss")
        if target_length is not None:
            if input_ids is None or prompt_width is None:
                raise ValueError("target_length needs input_ids and prompt_width beside it")
            check_target_length(target_length, len(input_ids))
            first = cache.get_seq_length() if cache is not None else 0
            column = torch.arange(first, first + input_ids.shape[1], device=input_ids.device)
            step = (column - prompt_width + 2).clamp(min=0)  # (T,)
            signal = self.length_signal(step, target_length.to(input_ids.device))  # (B, T, d)
            gate = torch.tanh(self.gate["g"]) if self.gate else self.config.length_signal["scale"]
            embeddings = self.get_input_embeddings()(input_ids)  # (B, T, d)
            kwargs["inputs_embeds"] = embeddings + (gate * signal).to(embeddings.dtype)
            input_ids = None
        kwargs |= {"attention_mask": attention_mask, "position_ids": position_ids, "cache": cache}
        kwargs |= {"labels": labels, "logits_to_keep": logits_to_keep}
        return super().forward(input_ids=input_ids, **kwargs)

    def prepare_inputs_for_generation(self, *args, target_length=None, prompt_width=None, **kwargs):
        request = {"target_length": target_length, "prompt_width": prompt_width}
        return super().prepare_inputs_for_generation(*args, **kwargs) | request

    def generate(self, inputs=None, *, target_length: Tensor | None = None, **kwargs):
        """As in LengthControl; prompts must be padded on the left."""
        if target_length is not None:
            prompts, mask = kwargs.get("input_ids", inputs), kwargs.get("attention_mask")
            if prompts is None or (mask is not None and (mask[:, -1:] == 0).any()):
                raise ValueError("target_length needs prompts (input_ids) padded on the left")
            kwargs["prompt_width"] = prompts.shape[-1]
        return super().generate(inputs, target_length=target_length, **kwargs)

    def most_target_tokens(self, source_width: int) -> int | None:
        context = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return None if context is None else max(0, context - source_width)

    def source_batch(self, sources: Ids, target_length: Tensor | None = None) -> Batch:
        """Inputs of `generate`: input_ids, attention_mask (B, P); target_length (B,) if given."""
        if self.numbered is not None and target_length is not None:
            sources = [self.numbered(row, l) for row, l in zip(sources, target_length.tolist())]
        ids = pad([row[::-1] for row in sources], 0).flip(1)
        mask = pad([[1] * len(row) for row in sources], 0).flip(1)
        batch = {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}
        request = {} if target_length is None else {"target_length": target_length.to(self.device)}
        return batch | request

    def pair_batch(self, sources: Ids, targets: Ids, target_length: Tensor | None = None) -> Batch:
        """Inputs of `forward` under teacher forcing: input_ids, attention_mask, position_ids
        (B, P + T - 1); labels (B, T) of the responses, `logits_to_keep` (T,) their columns.
        """
        batch = self.source_batch(sources, target_length)
        labels, width = pad(targets, -100).to(self.device), batch["input_ids"].shape[1]
        mask = torch.cat([batch["attention_mask"], (labels[:, :-1] != -100).long()], 1)
        return batch | {
            "input_ids": torch.cat([batch["input_ids"], labels[:, :-1].clamp(min=0)], 1),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "labels": labels,
            "logits_to_keep": torch.arange(width - 1, mask.shape[1], device=self.device),
            "prompt_width": torch.tensor(width, device=self.device),
        }

    @staticmethod
    def prompt_length(batch: Batch) -> int:
        return batch["input_ids"].shape[1]

    @staticmethod
    def widest_input(source_tokens: np.ndarray, target_tokens: np.ndarray) -> np.ndarray:
        return source_tokens + target_tokens


def add_lora(model: nn.Module) -> None:
    """Add LoRA (Hu et al., arXiv 2106.09685) to every linear layer but the unembedding, in place:
    now LoRA, gate and signal are trained, nothing else.
    """
    of_gpt2 = any(isinstance(module, Conv1D) for module in model.modules())  # transposed weights
    lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", fan_in_fan_out=of_gpt2)
    inject_adapter_in_model(lora, model)
    for module in filter(None, (model.length_signal, model.gate)):
        module.requires_grad_(True)


def labelled_prompts(tokenizer, sources: list[str], labels: tuple, max_source: int) -> Ids:
    """ "Summary: {source}\\nDescription:" of each source, cut; its parts are tokenised apart."""
    head, tail, end = token_ids(tokenizer, [f"{labels[0]}:", f"\n{labels[1]}", ":"])
    start, rows = start_of_text(tokenizer) + head, token_ids(tokenizer, [f" {s}" for s in sources])
    return [start + row[:max_source] + tail + end for row in rows]


def responses(tokenizer, targets: list[str]) -> Ids:
    """Each target behind a space, EOS at the end. ValueError for a tokenizer that has none."""
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no EOS token: nothing would end a response")
    rows = token_ids(tokenizer, [f" {target}" for target in targets])
    return [[*row, tokenizer.eos_token_id] for row in rows]


def numbered_prompt(tokenizer, prompt: list[int], length: int) -> list[int]:
    """A prompt of `labelled_prompts` that says the length: "Description (12 tokens):"."""
    number, end = token_ids(tokenizer, [f" ({length} tokens)", ":"])
    if prompt[-len(end) :] != end:
        raise ValueError("a prompt must end with ':', before which the number goes")
    return prompt[: -len(end)] + number + end
