"""Any encoder-decoder of transformers, with a length signal added to its decoder inputs at one point; and the one way to make a
length-controlled model, decoder-only ones (old.length.decoder_only) included.

X_t = E_t + P_t + signal(t, l). The embedding E and the signal are handed to the decoder as `decoder_inputs_embeds`; the decoder adds
its own positions P (BART, Marian) or none (T5). No modelling file is copied, and with a zero signal the model is the stock model.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LogitsProcessor, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from old.length.control import LengthControl, check_target_length
from old.length.counting import Counting
from old.length.decoder_only import DecoderOnlyMixin, check_decoder_only
from old.length.signals import make_signal
from old.seq2seq import seq2seq_batch, source_batch


class LengthControlMixin(LengthControl):
    """What is added to a stock encoder-decoder class: the signal, and `target_length` in `forward` and `generate`."""

    def complete(self, tokenizer: Callable[[], object]) -> None:
        if "counted" in self.config.length_signal:
            self.counting = Counting(tokenizer(), self.config.length_signal["counted"])

    def most_target_tokens(self, source_width: int) -> int | None:
        """Number of decoder positions, whatever the source, or None where positions are relative (T5)."""
        return getattr(self.config, "max_position_embeddings", None)

    def source_batch(self, sources: list[list[int]], target_length: Tensor | None = None) -> dict[str, Tensor]:
        """Inputs of `generate`: input_ids and attention_mask (B, S), padded on the right, and target_length (B,) if there is one."""
        return source_batch(self, sources) | self._told(target_length)

    def pair_batch(self, sources: list[list[int]], targets: list[list[int]], target_length: Tensor | None = None) -> dict[str, Tensor]:
        """Inputs of `forward` under teacher forcing: `source_batch`, labels and decoder_input_ids (B, T); logits are (B, T, V)."""
        return seq2seq_batch(self, sources, targets) | self._told(target_length)

    def _told(self, target_length: Tensor | None) -> dict[str, Tensor]:
        return {} if target_length is None else {"target_length": target_length.to(self.device)}

    @staticmethod
    def prompt_length(batch: dict[str, Tensor]) -> int:
        """Tokens in front of the first new one in what `generate` returns for a batch: the start token."""
        return 1

    @staticmethod
    def widest_input(source_tokens: np.ndarray, target_tokens: np.ndarray) -> np.ndarray:
        """Tokens of the longer input of each pair beside the target itself. (N,), (N,) -> (N,)"""
        return source_tokens

    def forward(
        self,
        input_ids: Tensor | None = None,  # (B, S)
        attention_mask: Tensor | None = None,  # (B, S)
        decoder_input_ids: Tensor | None = None,  # (B, T)
        encoder_outputs=None,
        cache=None,
        labels: Tensor | None = None,  # (B, T), -100 where no loss is due
        target_length: Tensor | None = None,  # (B,), without it the model is uncontrolled
        written: Tensor
        | None = None,  # (B,) what the tokens in the cache add up to, where lengths do not count tokens; `generate` gives it
        **kwargs,
    ):
        """Stock forward plus `target_length`: the number of tokens the decoder is to emit, EOS (and BART's forced <s>) included; or the
        number of words or characters of the text, in a model that counts those.
        """
        if input_ids is not None and input_ids.shape[-1] == 0:
            raise ValueError("empty source: every example needs at least one input token")
        if target_length is not None:
            if decoder_input_ids is None:
                if labels is None:
                    raise ValueError("target_length needs decoder_input_ids or labels beside it")
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            check_target_length(target_length, len(decoder_input_ids))
            target_length = target_length.to(decoder_input_ids.device)
            step = self._steps(decoder_input_ids, cache, written)
            kwargs["decoder_inputs_embeds"] = self._controlled_embeddings(decoder_input_ids, step, target_length)
            decoder_input_ids = None
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=encoder_outputs,
            cache=cache,
            labels=labels,
            **kwargs,
        )

    def _steps(self, decoder_input_ids: Tensor, cache, written: Tensor | None) -> Tensor:
        """How far along each decoder input is: t = 1 at the first (T,), or the words or characters written so far (B, T)."""
        seen = cache.get_seq_length() if cache is not None else 0
        if self.counting is None:
            return torch.arange(seen + 1, seen + 1 + decoder_input_ids.shape[1], device=decoder_input_ids.device)
        if seen and written is None:
            raise ValueError(f"counting {self.counting.counted} with a cache needs `written`, what the tokens in the cache add up to")
        return self.counting.written(decoder_input_ids) + (written[:, None] if seen else 0)

    def _controlled_embeddings(self, decoder_input_ids: Tensor, step: Tensor, target_length: Tensor) -> Tensor:
        """E_t + signal. (B, T), (T,) or (B, T), (B,) -> (B, T, d)"""
        decoder = self.get_decoder()
        embeddings = decoder.embed_tokens(decoder_input_ids)
        scale = getattr(decoder, "embed_scale", 1.0)  # Marian multiplies what it is handed; the signal must arrive unscaled
        return embeddings + self.length_signal(step, target_length).to(embeddings.dtype) / scale

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args, target_length: Tensor | None = None, **kwargs) -> dict:
        """Stock inputs of the next step; where lengths count words or characters also `written`: only here all tokens are at hand."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        if target_length is not None:
            inputs["target_length"] = target_length
            if self.counting is not None:
                cached = input_ids[:, : input_ids.shape[1] - inputs["decoder_input_ids"].shape[1]]
                inputs["written"] = self.counting.sizes.to(cached.device)[cached].sum(1)
        return inputs


def plain_generation(habits: GenerationConfig, eos_token_id: int | None = None) -> GenerationConfig:
    """Greedy, with a checkpoint's special tokens: its other habits (beams, least lengths, penalties) would move lengths.

    `eos_token_id`: the one that ends an output, unless it is the checkpoint's.
    """
    names = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
    special = {name: getattr(habits, name) for name in names}
    if eos_token_id is not None:
        special["eos_token_id"] = eos_token_id
    if special["pad_token_id"] is None:  # it only fills up what has ended
        special["pad_token_id"] = special["eos_token_id"]
    return GenerationConfig(**special)


@lru_cache
def controlled_class(mixin: type, base: type) -> type:
    """The stock class `base` with length control mixed in."""
    return type(f"LengthControlled{base.__name__}", (mixin, base), {"__module__": __name__})


def is_decoder_only(config: PretrainedConfig) -> bool:
    """Whether length control takes a model of this configuration for a causal one: those of encoder-decoders have a causal class too."""
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING


def _with_signal(config: PretrainedConfig, signal: str | None, options: dict, counted: str = "tokens", gate: str | None = None) -> type:
    """Record the signal, and what lengths count, in the configuration and return the controlled class for it."""
    causal = is_decoder_only(config)
    if not causal and type(config) not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{config.model_type!r} is neither an encoder-decoder of transformers (BART, T5, Marian, ...) nor a causal language model "
            "(Llama, GPT-2, ...): length control here needs one"
        )
    if signal is not None:
        config.length_signal = {"name": signal, "options": options} | ({"counted": counted} if counted != "tokens" else {})
        config.length_signal |= {"gate": gate or "tanh"} if causal else {}
    elif not hasattr(config, "length_signal"):
        raise ValueError("this checkpoint has no length signal yet: say which, for example signal='pre'")
    elif gate is not None:
        raise ValueError("gate comes with a signal: name both, or neither to take those that the checkpoint remembers")
    width = config.get_text_config().hidden_size
    made = make_signal(config.length_signal["name"], width, **config.length_signal["options"])  # unknown names end here
    if causal:
        base = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        check_decoder_only(base, config.length_signal)
        return controlled_class(DecoderOnlyMixin, base)
    if gate is not None:
        raise ValueError("an encoder-decoder has no gate: its signal is added as it is")
    if made.in_prompt:
        raise ValueError(f"{config.length_signal['name']!r} is for decoder-only models, whose prompts have a place for the number")
    return controlled_class(LengthControlMixin, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)])


class LengthControlled:
    """Makes length-controlled models; the result is an ordinary transformers model (save_pretrained, generate, train).

    >>> model = LengthControlled.from_pretrained("facebook/bart-large", signal="pre")  # doctest: +SKIP
    >>> model.generate(**inputs, target_length=torch.tensor([80]))  # doctest: +SKIP
    """

    @staticmethod
    def from_pretrained(
        name: str,
        signal: str | None = None,
        signal_options: dict | None = None,
        counted: str = "tokens",
        gate: str | None = None,
        **kwargs,
    ):
        """Load a checkpoint by hub name or folder. A checkpoint saved from here remembers its signal; `signal` replaces it.

        `counted`: what lengths count, "tokens", "words" or "characters"; the last two need the tokenizer beside the checkpoint, and an
        encoder-decoder. `gate`: of a decoder-only model, see old.length.decoder_only.
        `kwargs` go to the `from_pretrained` of transformers. Weights are float32 unless `dtype` says otherwise, also where they are stored
        in half precision, which fine-tuning does not survive.
        """
        kwargs = {"dtype": torch.float32, **kwargs}
        revision = kwargs.get("revision", "main")
        if "config" not in kwargs:
            kwargs["config"] = AutoConfig.from_pretrained(name, revision=revision)
        model = _with_signal(kwargs["config"], signal, signal_options or {}, counted, gate).from_pretrained(name, **kwargs)
        (model[0] if isinstance(model, tuple) else model).complete(lambda: AutoTokenizer.from_pretrained(name, revision=revision))
        return model

    @staticmethod
    def from_config(config: PretrainedConfig, signal: str | None = None, signal_options: dict | None = None, gate: str | None = None):
        """A randomly initialised model of this configuration."""
        model = _with_signal(config, signal, signal_options or {}, gate=gate)(config)
        model.complete(_no_tokenizer)
        return model


def _no_tokenizer() -> None:
    raise ValueError("this signal needs the tokenizer beside a checkpoint: load one by from_pretrained")


class ForcedLength(LogitsProcessor):
    """Forced decoding: EOS is masked until step l and is the only choice at step l, so every output has exactly l tokens.

    `prompt_length`: tokens in the decoder before the first generated one (the start token).
    """

    def __init__(self, target_length: Tensor, eos_token_id: int, prompt_length: int = 1):
        self.target_length, self.eos_token_id, self.prompt_length = target_length, eos_token_id, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids (B·beams, T), scores (B·beams, V) -> (B·beams, V)"""
        beams = len(scores) // len(self.target_length)
        last = (input_ids.shape[1] - self.prompt_length + 1 >= self.target_length).repeat_interleave(beams)  # this step is step l or later
        is_eos = torch.arange(scores.shape[1], device=scores.device) == self.eos_token_id
        return scores.masked_fill(last[:, None] ^ is_eos, -torch.inf)
