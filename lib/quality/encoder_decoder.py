"""Encoder-decoder models (BART, Marian, T5, ...) behind the interface of LanguageModel: scores,
negatives and heads work unchanged.
"""

from dataclasses import replace

from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from lib.quality.language_models import LanguageModel, Text
from lib.study.models import pad


class EncoderDecoder(LanguageModel):
    """A frozen encoder-decoder model with its tokenizer; hidden states are those of the decoder.

    A prompt is what the encoder reads, with the special tokens of the tokenizer. `ids` of a Text:
    the decoder's start token (and the forced first one, where the model has that: BART-large,
    mBART), then the output. EOS is not scored.
    """

    _loader = AutoModelForSeq2SeqLM

    def encode(self, prompts: list[str], outputs: list[str], chat: bool = False) -> list[Text]:
        """Raises ValueError for `chat`, an empty output, a source without tokens, and either that
        has no room in the model.
        """
        if chat:
            raise ValueError(
                "an encoder-decoder model has no chat template: its prompt is a source"
            )
        texts = super().encode([""] * len(prompts), outputs)
        sources = self.tokenizer(list(prompts), verbose=False)["input_ids"] if texts else []
        for number, source in enumerate(sources):
            if not 0 < len(source) <= (self.context or len(source)):
                room = f"the encoder holds 1 to {self.context}"
                raise ValueError(f"prompt {number} has {len(source)} tokens; {room}")
        return [replace(text, source=tuple(source)) for text, source in zip(texts, sources)]

    def _first(self) -> list[int]:
        settings = self.model.generation_config
        start = (settings.decoder_start_token_id, settings.forced_bos_token_id)
        return [token for token in start if token is not None]

    def _bias(self) -> Tensor | None:
        constant = getattr(self.model, "final_logits_bias", None)  # BART and Marian: (1, V)
        return super()._bias() if constant is None else constant[0]

    def _batch(self, texts: list[Text]) -> dict[str, Tensor]:
        """The decoder needs no mask: it is causal, and padding stands behind each text."""
        sources = super()._batch([replace(text, ids=text.source) for text in texts])
        ids = pad([text.ids for text in texts], 0)
        return sources | {"decoder_input_ids": ids.to(self.device)}

    def _states(self, batch: dict[str, Tensor]) -> Tensor:
        sources = {name: batch[name] for name in ("input_ids", "attention_mask")}
        encoded = self.model.get_encoder()(**sources)[0]
        return self.model.get_decoder()(
            input_ids=batch["decoder_input_ids"],
            encoder_hidden_states=encoded,
            encoder_attention_mask=batch["attention_mask"],
            use_cache=False,
        )[0]
