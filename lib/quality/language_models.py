"""A frozen causal language model: hidden states at its response positions, and what it writes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lib.study import models
from lib.study.paths import progress

# options of `generate`: the model's own distribution, whatever its configuration says
SAMPLING = dict(do_sample=True, top_k=0, top_p=1.0, temperature=1.0, repetition_penalty=1.0)


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt, from `start` on of the output; `source`: what an encoder reads."""

    ids: tuple[int, ...]
    start: int
    source: tuple[int, ...] = ()

    @property
    def output(self) -> tuple[int, ...]:
        return self.ids[self.start :]


class Unembedding:
    """The last layer of a frozen model: `unembedding` (V, d) and `bias` (V,) or None."""

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
        """By name (see `lib.study.models`), on a GPU where there is one. `dtype`, unless given:
        bfloat16 on a GPU for a model that is stored in it, else float32: nothing is rounded, and a
        head belongs to its model on every machine. ValueError or FileNotFoundError where it is
        unknown, missing or broken.
        """
        place, device = models.pretrained_name(name), models.best_device()
        try:
            if dtype is None:
                stored = AutoConfig.from_pretrained(place).dtype
                wanted = stored == torch.bfloat16 and models.computes_in_bfloat16(device)
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
        return len(models.token_ids(self.tokenizer, [text])[0]) == 1

    def encode(self, prompts: list[str], outputs: list[str], chat: bool = False) -> list[Text]:
        """Token ids of prompts (`chat`: the user's turns of the chat template) and outputs, which
        are tokenised apart. An empty prompt becomes the token that starts texts. ValueError for an
        empty output, or one that does not fit the context together with its prompt.
        """
        if len(prompts) != len(outputs):
            raise ValueError(f"{len(prompts)} prompts but {len(outputs)} outputs")
        if not prompts:
            return []
        turns = models.as_turns(self.tokenizer, prompts) if chat else prompts
        before = models.prompt_ids(self.tokenizer, turns)
        first, texts = self._first(), []
        after = models.token_ids(self.tokenizer, outputs)
        for number, (start, output) in enumerate(zip(before, after)):
            ids = (*(start or first), *output)
            if not output:
                raise ValueError(f"output {number} is empty: there is no token to score")
            if len(ids) > (self.context or len(ids)):
                many = f"output {number} has {len(ids)} tokens with its prompt"
                raise ValueError(f"{many}; the context holds {self.context}")
            texts.append(Text(ids, len(ids) - len(output)))
        return texts

    @torch.no_grad()
    def hidden_states(self, texts: list[Text], tokens_per_batch: int = 4096) -> Tensor:
        """Last hidden states (after the final norm) at the positions that predict each output
        token, in the order of the texts. (N, d) float32 on the CPU. ValueError for no texts.
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
        self, prompts: list[str], max_tokens: int, seed: int, greedy: bool = False
    ) -> list[str]:
        """One continuation a prompt, sampled from the model's own distribution, or with `greedy` of
        the likeliest token at each step. The same list and seed give the same samples.
        """
        ids, padding = models.prompt_ids(self.tokenizer, prompts), self.tokenizer.eos_token_id
        options = {**SAMPLING, "do_sample": not greedy, "max_new_tokens": max_tokens}

        def padded(rows: list[list[int]], value: int) -> Tensor:  # on the left
            return models.pad([row[::-1] for row in rows], value).flip(1).to(self.device)

        def write(rows: list[list[int]]) -> Tensor:
            read, mask = padded(rows, padding), padded([[1] * len(row) for row in rows], 0)
            known = {"attention_mask": mask, "pad_token_id": padding}
            return self.model.generate(read, **known, **options)[:, read.shape[1] :]

        order = np.argsort([len(row) for row in ids], kind="stable")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self._in_batches(ids, order, write)

    def _in_batches(self, ids: list[list[int]], order, write, batch: int = 64) -> list[str]:
        """Texts of the tokens that `write` makes of rows of ids, so many at a time."""
        texts = np.full(len(ids), "", object)
        for start in progress(range(0, len(ids), batch), "writing"):
            rows = order[start : start + batch]
            tokens = write([ids[i] for i in rows])
            texts[rows] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return texts.tolist()

    def _first(self) -> list[int]:
        """Ids before an output without a prompt."""
        first = self.tokenizer.bos_token_id
        return [self.tokenizer.eos_token_id if first is None else first]

    def _bias(self) -> Tensor | None:
        """What the model adds to hidden state times unembedding. (V,)"""
        return getattr(self.model.get_output_embeddings(), "bias", None)

    def _batch(self, texts: list[Text]) -> dict[str, Tensor]:
        """Padded on the right. Only lengths decide what is padding: it may be a text token."""
        ids = models.pad([text.ids for text in texts], 0)
        lengths = torch.tensor([len(text.ids) for text in texts])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}

    def _states(self, batch: dict[str, Tensor]) -> Tensor:
        """What meets the unembedding, at every position of a batch. (B, T, d)"""
        return self.model.base_model(**batch, use_cache=False)[0]

    @torch.no_grad()
    def _check(self) -> None:
        """Some models scale or cap their logits after the unembedding."""
        batch = self._batch([Text((1, 2, 3, 4), 1, source=(1, 2, 3, 4))])
        ours = self.logits(self._states(batch)[0])
        if not torch.allclose(ours, self.model(**batch).logits[0].float(), rtol=1e-2, atol=1e-2):
            raise ValueError(f"{self.name} transforms its logits after the unembedding")
