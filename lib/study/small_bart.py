"""A BART from scratch at laptop size: a byte-level BPE tokenizer learned from text, and the
configuration of a small random model.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BartConfig, PreTrainedTokenizerFast

PAD, BOS, EOS, UNK, MASK = range(5)
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
POSITIONS = 512


def train_tokenizer(
    texts: list[str], vocabulary: int, positions: int = POSITIONS
) -> PreTrainedTokenizerFast:
    """Byte-level BPE of `vocabulary` entries, learned from `texts`. Encoding appends </s>, nothing
    else.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", EOS)]
    )
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token", "mask_token"), SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **names)


def configuration(
    vocabulary: int,
    d_model: int = 128,
    layers: int = 2,
    ffn_dim: int | None = None,
    positions: int = POSITIONS,
    **others,
) -> BartConfig:
    """A small BART; `ffn_dim` is 4 * d_model unless given, `others` are fields of BartConfig.

    `scale_embedding`: without it a signal of norm sqrt(d/2) would swamp small embeddings.
    """
    size = {"layers": layers, "attention_heads": 4, "ffn_dim": ffn_dim or 4 * d_model}
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in size.items()}
    special = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    forced = {"forced_bos_token_id": None, "forced_eos_token_id": None}
    common = {"max_position_embeddings": positions, "scale_embedding": True, "init_std": 0.08}
    return BartConfig(
        vocab_size=vocabulary,
        d_model=d_model,
        decoder_start_token_id=EOS,
        **{**sides, **special, **forced, **common, "dropout": 0.1, **others},
    )
