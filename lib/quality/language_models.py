"""A frozen causal language model: hidden states at its response positions, and what it writes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lib.study.models import (
    as_turns,
    best_device,
    computes_in_bfloat16,
    pad,
    pretrained_name,
    prompt_ids,
    token_ids,
)
from lib.study.paths import progress

# options of `generate`: the model's own distribution, whatever its configuration says
SAMPLING = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0}
SAMPLING |= {"repetition_penalty": 1.0}


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and the output after it; those from `start` on are the output's.

    `source`: what the encoder of an encoder-decoder model reads; empty for a causal model.
    """

    ids: tuple[int, ...]
    start: int
    source: tuple[int, ...] = ()

    @property
    def output(self) -> tuple[int, ...]:
        return self.ids[self.start :]


class Unembedding:
    """The last layer of a frozen model, hidden state -> logits: `unembedding` (V, d) and `bias`
    (V,) or None. Copy them before training anything.
    """

    def __init__(self, unembedding: Tensor, bias: Tensor | None = None):
        self.unembedding, self.bias = unembedding.detach(), bias

    @property
    def device(self) -> torch.device:
        return self.unembedding.device

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in float32 whatever the model runs in. (n, d) -> (n, V)"""
        bias = None if self.bias is None else self.bias.float()
        return torch.nn.functional.linear(hidden.float(), self.unembedding.float(), bias)


class LanguageModel(Unembedding):
    """A frozen causal language model with its tokenizer."""

    _loader = AutoModelForCausalLM

    def __init__(self, name: str, model, tokenizer):
        self.name, self.tokenizer = name, tokenizer
        self.model = model.eval().requires_grad_(False)
        super().__init__(model.get_output_embeddings().weight, self._bias())
        self.context = getattr(model.config, "max_position_embeddings", None)
        self._check()

    @classmethod
    def load(cls, name: str, dtype: torch.dtype | None = None) -> "LanguageModel":
        """By name (see `lib.study.models`), on a GPU where there is one.

        `dtype`, unless given: bfloat16 on a GPU with such arithmetic for a model that is stored in
        it, float32 for all others, and on CPUs. So nothing is rounded on loading, and a head
        trained on one machine belongs to the model on every other.
        Raises ValueError or FileNotFoundError where it is unknown, missing or broken.
        """
        place, device = pretrained_name(name), best_device()
        try:
            if dtype is None:
                stored = AutoConfig.from_pretrained(place).dtype
                wanted = stored == torch.bfloat16 and computes_in_bfloat16(device)
                dtype = torch.bfloat16 if wanted else torch.float32
            model = cls._loader.from_pretrained(place, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(place)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            raise ValueError(f"cannot load the language model {name!r} ({reason})") from error
        return cls(Path(name).name if Path(name).is_dir() else name, model.to(device), tokenizer)

    @property
    def has_turns(self) -> bool:
        """Whether the model has a chat template."""
        return getattr(self.tokenizer, "chat_template", None) is not None

    def is_token(self, text: str) -> bool:
        """Whether a text is one token."""
        return len(token_ids(self.tokenizer, [text])[0]) == 1

    def encode(self, prompts: list[str], outputs: list[str], chat: bool = False) -> list[Text]:
        """Token ids of prompts and outputs, which are tokenised apart, so that an output's tokens
        do not depend on the prompt. An empty prompt becomes the token that starts texts.

        `chat`: each prompt is the user's turn of the chat template. Raises ValueError for an empty
        output, or one that does not fit the context together with its prompt.
        """
        if len(prompts) != len(outputs):
            raise ValueError(f"{len(prompts)} prompts but {len(outputs)} outputs")
        if not prompts:
            return []
        before = prompt_ids(self.tokenizer, as_turns(self.tokenizer, prompts) if chat else prompts)
        first, texts = self._first(), []
        for number, (start, output) in enumerate(zip(before, token_ids(self.tokenizer, outputs))):
            ids = (*(start or first), *output)
            if not output:
                raise ValueError(f"output {number} is empty: there is no token to score")
            if self.context is not None and len(ids) > self.context:
                counted = f"{len(ids)} tokens with its prompt; the context holds {self.context}"
                raise ValueError(f"output {number} has {counted}")
            texts.append(Text(ids, len(ids) - len(output)))
        return texts

    @torch.no_grad()
    def hidden_states(self, texts: list[Text], tokens_per_batch: int = 4096) -> Tensor:
        """Last hidden states (after the final norm) at the positions that predict each output
        token, in the order of the texts. (N, d) float32 on the CPU

        Texts of similar length share a batch. Padded, the `ids` of a batch and its sources hold at
        most `tokens_per_batch` tokens each, or one text. ValueError for no texts.
        """
        if not texts:
            raise ValueError("no texts: there is no position to compute hidden states of")
        ends = np.cumsum([len(text.output) for text in texts])
        states = torch.empty(int(ends[-1]), self.unembedding.shape[1])
        size = [max(len(text.ids), len(text.source)) for text in texts]
        longest_first = sorted(range(len(texts)), key=lambda i: -size[i])  # memory shows at once
        bar = progress(None, "language model", total=len(texts))
        while longest_first:
            fits = max(1, tokens_per_batch // size[longest_first[0]])
            batch, longest_first = longest_first[:fits], longest_first[fits:]
            output = self._states(self._batch([texts[i] for i in batch]))
            for row, i in enumerate(batch):
                own = output[row, texts[i].start - 1 : len(texts[i].ids) - 1]
                states[ends[i] - len(own) : ends[i]] = own.float().cpu()
            bar.update(len(batch))
        bar.close()
        return states

    @torch.no_grad()
    def continuations(
        self, prompts: list[str], max_tokens: int, seed: int, greedy: bool = False, batch: int = 64
    ) -> list[str]:
        """One continuation a prompt, sampled from the model's own distribution, or with `greedy` of
        the likeliest token at each step. The same list and seed give the same samples.
        """
        options = {**SAMPLING, "do_sample": not greedy, "max_new_tokens": max_tokens}
        ids, padding = prompt_ids(self.tokenizer, prompts), self.tokenizer.eos_token_id
        order, outputs = sorted(range(len(ids)), key=lambda i: len(ids[i])), [""] * len(ids)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for start in progress(range(0, len(order), batch), "sampling"):
                group = order[start : start + batch]  # of similar length, padded on the left
                missing = [len(ids[group[-1]]) - len(ids[i]) for i in group]
                rows = [[padding] * count + ids[i] for i, count in zip(group, missing)]
                mask = [[0] * count + [1] * len(ids[i]) for i, count in zip(group, missing)]
                rows, mask = (torch.tensor(x, device=self.device) for x in (rows, mask))
                out = self.model.generate(
                    rows, attention_mask=mask, pad_token_id=padding, **options
                )
                written = out[:, rows.shape[1] :]
                texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
                for i, text in zip(group, texts):
                    outputs[i] = text
        return outputs

    def _first(self) -> list[int]:
        """Ids before an output without a prompt."""
        first = self.tokenizer.bos_token_id
        return [self.tokenizer.eos_token_id if first is None else first]

    def _bias(self) -> Tensor | None:
        """What the model adds to hidden state times unembedding. (V,)"""
        return getattr(self.model.get_output_embeddings(), "bias", None)

    def _batch(self, texts: list[Text]) -> dict[str, Tensor]:
        """Inputs of the model, padded on the right. Only lengths decide what is padding: many
        models use a text token as padding.
        """
        ids = pad([text.ids for text in texts], 0)
        lengths = torch.tensor([len(text.ids) for text in texts])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}

    def _states(self, batch: dict[str, Tensor]) -> Tensor:
        """What meets the unembedding, at every position of a batch. (B, T, d)"""
        return self.model.base_model(**batch, use_cache=False)[0]

    @torch.no_grad()
    def _check(self) -> None:
        """Hidden state times unembedding must be the model's own logits: some models scale or cap
        them afterwards.
        """
        batch = self._batch([Text((1, 2, 3, 4), 1, source=(1, 2, 3, 4))])
        ours = self.logits(self._states(batch)[0])
        if not torch.allclose(ours, self.model(**batch).logits[0].float(), rtol=1e-2, atol=1e-2):
            raise ValueError(f"{self.name} transforms its logits after the unembedding")
