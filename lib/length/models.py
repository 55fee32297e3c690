"""Length-controlled models: a stock model of transformers with a signal added to its decoder
inputs, at one point. Encoder-decoders here; causal language models in `lib.length.decoder_only`.

X_t = E_t + P_t + signal(t, l): E + signal are handed over as `decoder_inputs_embeds`, the decoder
adds its positions P (BART, Marian) or none (T5). With a zero signal it is the stock model.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from lib.length.control import Counting, LengthControl, check_target_length
from lib.length.decoder_only import DecoderOnlyMixin, check_decoder_only
from lib.length.signals import make_signal
from lib.study.models import seq2seq_batch, source_batch

Rows, Batch = list[list[int]], dict[str, Tensor]


class LengthControlled:
    """Makes length-controlled models; the result is an ordinary transformers model.

    >>> model = LengthControlled.from_pretrained("bart-folder", signal="pre")  # doctest: +SKIP
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
        """Load a checkpoint by hub name or folder, in float32 unless `dtype` says otherwise. One
        saved from here remembers its signal; `signal` replaces it.

        `counted`: what lengths count, "tokens", "words" or "characters"; the last two need an
        encoder-decoder with its tokenizer beside it. `gate`: see lib.length.decoder_only. `kwargs`
        go to the `from_pretrained` of transformers.
        """
        revision = kwargs.get("revision", "main")
        config = kwargs.pop("config", None) or AutoConfig.from_pretrained(name, revision=revision)
        controlled = _with_signal(config, signal, signal_options or {}, counted, gate)
        kwargs = {"config": config, "dtype": torch.float32, **kwargs}
        loaded = controlled.from_pretrained(name, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with its loading report
        model.complete(lambda: AutoTokenizer.from_pretrained(name, revision=revision))
        return loaded

    @staticmethod
    def from_config(config: PretrainedConfig, signal=None, signal_options=None, gate=None):
        """A randomly initialised model of this configuration."""
        controlled = _with_signal(config, signal, signal_options or {}, gate=gate)
        if config.length_signal["name"] == "number-in-prompt":
            raise ValueError("this signal needs a checkpoint's tokenizer: use from_pretrained")
        model = controlled(config)
        model.complete(None)
        return model


class LengthControlMixin(LengthControl):
    """What is added to a stock encoder-decoder class: `target_length` in `forward`."""

    def complete(self, tokenizer: Callable[[], object]) -> None:
        if "counted" in self.config.length_signal:
            self.counting = Counting(tokenizer(), self.config.length_signal["counted"])

    def most_target_tokens(self, source_width: int) -> int | None:
        """Number of decoder positions, whatever the source; None where they are relative (T5)."""
        return getattr(self.config, "max_position_embeddings", None)

    def source_batch(self, sources: Rows, target_length: Tensor | None = None) -> Batch:
        """Inputs of `generate`: input_ids, attention_mask (B, S); target_length (B,) if given."""
        return source_batch(self, sources) | self._request(target_length)

    def pair_batch(self, sources: Rows, targets: Rows, target_length=None) -> Batch:
        """Inputs of `forward` under teacher forcing: those, labels and decoder_input_ids (B, T)."""
        return seq2seq_batch(self, sources, targets) | self._request(target_length)

    def _request(self, target_length: Tensor | None) -> Batch:
        return {} if target_length is None else {"target_length": target_length.to(self.device)}

    @staticmethod
    def prompt_length(batch: Batch) -> int:
        return 1

    @staticmethod
    def widest_input(source_tokens: np.ndarray, target_tokens: np.ndarray) -> np.ndarray:
        return source_tokens

    def forward(
        self,
        input_ids: Tensor | None = None,  # (B, S)
        attention_mask: Tensor | None = None,  # (B, S)
        decoder_input_ids: Tensor | None = None,  # (B, T)
        cache=None,
        labels: Tensor | None = None,  # (B, T), -100 where no loss is due
        target_length: Tensor | None = None,  # (B,), without it the model is uncontrolled
        written: Tensor | None = None,  # (B,) words or characters of the tokens in the cache
        **kwargs,
    ):
        """Stock forward plus `target_length`: tokens that the decoder is to emit, EOS (and BART's
        forced <s>) included; or words or characters (`generate` gives a model `written`).
        """
        if input_ids is not None and input_ids.shape[-1] == 0:
            raise ValueError("empty source: every example needs at least one input token")
        if target_length is not None:
            if decoder_input_ids is None:
                if labels is None:
                    raise ValueError("target_length needs decoder_input_ids or labels beside it")
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            check_target_length(target_length, len(decoder_input_ids))
            step = self._steps(decoder_input_ids, cache, written)
            signal = self.length_signal(step, target_length.to(step.device))  # (B, T, d)
            decoder = self.get_decoder()
            embeddings = decoder.embed_tokens(decoder_input_ids)
            scale = getattr(decoder, "embed_scale", 1.0)  # Marian's: the signal arrives unscaled
            kwargs["decoder_inputs_embeds"] = embeddings + signal.to(embeddings.dtype) / scale
            decoder_input_ids = None
        kwargs |= {"attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
        return super().forward(input_ids=input_ids, cache=cache, labels=labels, **kwargs)

    def _steps(self, decoder_input_ids: Tensor, cache, written: Tensor | None) -> Tensor:
        """t = 1, 2, ... of each decoder input (T,), or words or characters so far (B, T)."""
        cached = cache.get_seq_length() if cache is not None else 0
        if self.counting is None:
            last = cached + decoder_input_ids.shape[1]
            return torch.arange(cached + 1, last + 1, device=decoder_input_ids.device)
        if cached and written is None:
            raise ValueError(f"counting {self.counting.counted} with a cache needs `written`")
        return self.counting.written(decoder_input_ids) + (written[:, None] if cached else 0)

    def prepare_inputs_for_generation(self, input_ids, *args, target_length=None, **kwargs) -> dict:
        """Stock inputs of the next step, the request, and `written`: here all tokens are known."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        if target_length is not None:
            inputs["target_length"] = target_length
            if self.counting is not None:
                cached = input_ids.shape[1] - inputs["decoder_input_ids"].shape[1]
                sizes = self.counting.sizes.to(input_ids.device)
                inputs["written"] = sizes[input_ids[:, :cached]].sum(1)
        return inputs


def is_decoder_only(config: PretrainedConfig) -> bool:
    """Whether a model of this configuration is a causal one, and no encoder-decoder, too."""
    seq2seq = type(config) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not seq2seq


def _with_signal(config, signal, options: dict, counted="tokens", gate=None) -> type:
    """Record signal, gate and what lengths count in the configuration; return the class for it."""
    causal = is_decoder_only(config)
    if not causal and type(config) not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        raise ValueError(f"{config.model_type!r} is neither an encoder-decoder nor a causal model")
    if gate is not None and (signal is None or not causal):
        raise ValueError("a gate comes with the signal of a decoder-only model: name both or none")
    if signal is not None:
        config.length_signal = {"name": signal, "options": options}
        config.length_signal |= {"counted": counted} if counted != "tokens" else {}
        config.length_signal |= {"gate": gate or "tanh"} if causal else {}
    elif not hasattr(config, "length_signal"):
        raise ValueError("this checkpoint has no length signal yet: say which, e.g. signal='pre'")
    name = config.length_signal["name"]
    make_signal(name, config.get_text_config().hidden_size, **config.length_signal["options"])
    if name == "number-in-prompt" and not causal:
        raise ValueError(f"{name!r} is for decoder-only models, whose prompts have a place for it")
    stock = MODEL_FOR_CAUSAL_LM_MAPPING if causal else MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    base, mixin = stock[type(config)], DecoderOnlyMixin if causal else LengthControlMixin
    if causal:
        check_decoder_only(base, config.length_signal)
    return type(f"LengthControlled{base.__name__}", (mixin, base), {"__module__": __name__})
