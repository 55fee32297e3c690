"""Any encoder-decoder of transformers, with a length signal added to its decoder inputs at one point.

X_t = E_t + P_t + signal(t, l). The embedding E and the signal are handed to the decoder as `decoder_inputs_embeds`; the decoder adds
its own positions P (BART, Marian) or none (T5). No modelling file is copied, and with a zero signal the model is the stock model.
"""

import sys
from functools import lru_cache

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LogitsProcessor, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from lib.length.counting import Counting
from lib.length.signals import LengthSignal, make_signal

ALLOWANCE = 100  # tokens an output may run past its requested length before it is cut


def check_target_length(target_length: Tensor, batch_size: int, max_length: int | None = None) -> None:
    """Raise ValueError, saying what to do, unless `target_length` is (B,) positive integers that the model's positions can hold."""
    if not isinstance(target_length, Tensor) or target_length.is_floating_point() or target_length.dtype == torch.bool:
        raise ValueError("target_length must be an integer tensor of shape (batch,), one number of tokens (EOS included) an example")
    if target_length.shape != (batch_size,):
        raise ValueError(
            f"target_length has shape {tuple(target_length.shape)}, but the batch has {batch_size} examples: give one length each"
        )
    if (target_length <= 0).any():
        raise ValueError(f"target_length must be at least 1 (EOS alone), not {target_length.min().item()}")
    if max_length is not None and (target_length > max_length).any():
        raise ValueError(f"target_length {target_length.max().item()} is beyond the model's {max_length} decoder positions")


class LengthControlMixin:
    """What is added to a stock encoder-decoder class: the signal, and `target_length` in `forward` and `generate`."""

    def __init__(self, config: PretrainedConfig, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        name, options = config.length_signal["name"], config.length_signal["options"]
        self.length_signal = make_signal(name, config.d_model, **options)
        self.counting: Counting | None = None  # what lengths count other than tokens

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LengthSignal):  # transformers calls this for weights that a checkpoint lacks
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        else:
            super()._init_weights(module)

    @property
    def max_target_length(self) -> int | None:
        """Number of decoder positions, or None where positions are relative (T5)."""
        return getattr(self.config, "max_position_embeddings", None)

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

    def generate(self, inputs: Tensor | None = None, *, target_length: Tensor | None = None, **kwargs):
        """Stock `generate` (greedy, beams, sampling; cache on or off); `target_length` (B,) asks for that many tokens (words, characters)
        an example.

        Unless the caller sets a limit, outputs may run ALLOWANCE tokens past the longest request.
        """
        source = inputs if inputs is not None else kwargs.get("input_ids")
        if source is not None and source.shape[-1] == 0:
            raise ValueError("empty source: every example needs at least one input token")
        if target_length is not None:
            if source is not None:
                check_target_length(target_length, len(source), self.max_target_length if self.counting is None else None)
            kwargs["target_length"] = target_length
            if not kwargs.keys() & {"max_new_tokens", "max_length", "generation_config", "stopping_criteria"}:
                kwargs["max_new_tokens"] = self.most_new_tokens(int(target_length.max()))
        return super().generate(inputs, **kwargs)

    def most_new_tokens(self, target_length: int) -> int:
        """Tokens at which an output of that request is cut: ALLOWANCE more than it may take, as far as positions go."""
        most = target_length if self.counting is None else self.counting.most_tokens(target_length)
        return min(most + ALLOWANCE, self.max_target_length or sys.maxsize)


def plain_generation(habits: GenerationConfig) -> GenerationConfig:
    """Greedy, with a checkpoint's special tokens: its other habits (beams, least lengths, penalties) would move lengths."""
    special = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
    return GenerationConfig(**{name: getattr(habits, name) for name in special})


@lru_cache
def controlled_class(base: type) -> type:
    """The stock class `base` with length control mixed in."""
    return type(f"LengthControlled{base.__name__}", (LengthControlMixin, base), {"__module__": __name__})


def _with_signal(config: PretrainedConfig, signal: str | None, options: dict, counted: str = "tokens") -> type:
    """Record the signal, and what lengths count, in the configuration and return the controlled class for it."""
    if type(config) not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{config.model_type!r} is not an encoder-decoder of transformers: length control here needs one (BART, T5, Marian, ...)"
        )
    if signal is not None:
        config.length_signal = {"name": signal, "options": options} | ({"counted": counted} if counted != "tokens" else {})
    elif not hasattr(config, "length_signal"):
        raise ValueError("this checkpoint has no length signal yet: say which, for example signal='pre'")
    make_signal(config.length_signal["name"], config.d_model, **config.length_signal["options"])  # unknown names end here
    return controlled_class(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)])


class LengthControlled:
    """Makes length-controlled models; the result is an ordinary transformers model (save_pretrained, generate, train).

    >>> model = LengthControlled.from_pretrained("facebook/bart-large", signal="pre")  # doctest: +SKIP
    >>> model.generate(**inputs, target_length=torch.tensor([80]))  # doctest: +SKIP
    """

    @staticmethod
    def from_pretrained(name: str, signal: str | None = None, signal_options: dict | None = None, counted: str = "tokens", **kwargs):
        """Load a checkpoint by hub name or folder. A checkpoint saved from here remembers its signal; `signal` replaces it.

        `counted`: what lengths count, "tokens", "words" or "characters"; the last two need the tokenizer beside the checkpoint.
        `kwargs` go to the `from_pretrained` of transformers. Weights are float32 unless `dtype` says otherwise, also where they are stored
        in half precision, which fine-tuning does not survive.
        """
        kwargs = {"dtype": torch.float32, **kwargs}
        if "config" not in kwargs:
            kwargs["config"] = AutoConfig.from_pretrained(name, revision=kwargs.get("revision", "main"))
        loaded = _with_signal(kwargs["config"], signal, signal_options or {}, counted).from_pretrained(name, **kwargs)
        model = loaded[0] if kwargs.get("output_loading_info") else loaded
        if "counted" in model.config.length_signal:
            tokenizer = AutoTokenizer.from_pretrained(name, revision=kwargs.get("revision", "main"))
            model.counting = Counting(tokenizer, model.config.length_signal["counted"])
        return loaded

    @staticmethod
    def from_config(config: PretrainedConfig, signal: str | None = None, signal_options: dict | None = None):
        """A randomly initialised model of this configuration."""
        return _with_signal(config, signal, signal_options or {})(config)


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
