"""Length-controlled models against the stock models of transformers they extend. Dropout off
throughout.
"""

import pytest
import torch
from small_models import CONFIGS, POSITIONS, controlled, random_rows, signal_options, stock
from transformers import LogitsProcessorList, ViTConfig

from lib.length.generation import ForcedLength, output_lengths
from lib.length.models import LengthControlled
from lib.length.signals import SIGNALS
from lib.study.models import seq2seq_batch, source_batch

DECODINGS = {"greedy": {"num_beams": 1}, "beams": {"num_beams": 3}}
FAMILIES = pytest.mark.parametrize("kind", CONFIGS)
CACHES = pytest.mark.parametrize("use_cache", [True, False])
SIZES, LENGTHS = (
    [5, 7, 9, 4],
    torch.tensor([20, 9, 14, 5]),
)  # tokens of four sources, and tokens asked for


def sources(model) -> dict:
    """Four sources of different lengths, padded."""
    return source_batch(model, random_rows(SIZES, eos=model.config.eos_token_id))


def pairs(model) -> dict:
    """Sources and targets (labels and decoder inputs) of different lengths."""
    rows = [
        random_rows(lengths, seed, model.config.eos_token_id)
        for seed, lengths in ((0, [5, 7, 9]), (1, [8, 3, 6]))
    ]
    return seq2seq_batch(model, *rows)


def decode(model, batch: dict, lengths=None, **options) -> torch.Tensor:
    given = {} if lengths is None else {"target_length": lengths}
    return model.generate(**batch, **given, **{"do_sample": False, "max_new_tokens": 24, **options})


def decoder_input(model, batch: dict, **options) -> torch.Tensor:
    """X, what enters the decoder's first layer (BART: its layer norm of the embeddings). (B, T,
    d)
    """
    decoder, seen = model.get_decoder(), []
    first = (
        decoder.layernorm_embedding
        if hasattr(decoder, "layernorm_embedding")
        else (getattr(decoder, "layers", None) or decoder.block)[0]
    )

    def look(module, arguments, keywords):
        seen.append(arguments[0] if arguments else keywords["hidden_states"])

    hook = first.register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad():
        model(**batch, **options)
    hook.remove()
    return seen[0]


# ---- zero signal = stock model ---------------------------------------------------------------


@FAMILIES
def test_zero_signal_is_the_stock_model(kind):
    """With `none`, asking for a length changes nothing: logits, loss, greedy and beam output are
    stock.
    """
    ours = controlled(kind, "none")
    theirs, batch = stock(kind, ours.state_dict()), pairs(ours)
    with torch.no_grad():
        a, b = ours(**batch, target_length=torch.tensor([8, 3, 6])), theirs(**batch)
    torch.testing.assert_close(a.logits, b.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(a.loss, b.loss, atol=1e-5, rtol=0)
    for options in DECODINGS.values():
        assert torch.equal(
            decode(ours, sources(ours), LENGTHS, **options),
            decode(theirs, sources(ours), **options),
        )


@FAMILIES
def test_labels_alone_suffice(kind):
    """Without decoder_input_ids they are the labels shifted right, as in the stock model."""
    model = controlled(kind)
    batch, l = pairs(model), torch.tensor([8, 3, 6])
    with torch.no_grad():
        both = model(**batch, target_length=l)
        del batch["decoder_input_ids"]
        torch.testing.assert_close(
            model(**batch, target_length=l).logits, both.logits, atol=1e-6, rtol=0
        )


@FAMILIES
def test_without_target_length_it_is_uncontrolled(kind):
    """A controlled model that is not told a length is the stock model."""
    ours = controlled(kind, "pre")
    theirs = stock(
        kind,
        {name: value for name, value in ours.state_dict().items() if "length_signal" not in name},
    )
    assert torch.equal(decode(ours, sources(ours)), decode(theirs, sources(ours)))
    assert not torch.equal(decode(ours, sources(ours)), decode(ours, sources(ours), LENGTHS))


# ---- X = E + P + signal ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pre", "rpe", "linear"])
@FAMILIES
def test_signal_is_added_unscaled(kind, name):
    """X_t = E_t + P_t + signal(t, l): what the signal adds to the decoder input is the signal,
    whatever the model's embedding scale.
    """
    model, l = controlled(kind, name), torch.tensor([8, 3, 6])
    batch = pairs(model)
    added = decoder_input(model, batch, target_length=l) - decoder_input(model, batch)
    with torch.no_grad():
        expected = model.length_signal(torch.arange(1, 9), l)
    torch.testing.assert_close(added, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "name", sorted(set(SIGNALS) - {"number-in-prompt"})
)  # that is for decoder-only models
def test_half_precision(name):
    """The signal follows the model's type."""
    model = controlled("bart", name).bfloat16()
    with torch.no_grad():
        logits = model(**pairs(model), target_length=torch.tensor([8, 3, 6])).logits
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()


# ---- generation ------------------------------------------------------------------------------


@pytest.mark.parametrize("decoding", DECODINGS)
@FAMILIES
def test_cache_changes_nothing(kind, decoding):
    """Cached = uncached generation."""
    model = controlled(kind)
    batch = sources(model)
    cached, uncached = (
        decode(model, batch, LENGTHS, use_cache=on, **DECODINGS[decoding]) for on in (True, False)
    )
    assert torch.equal(cached, uncached)
    assert len(cached.unique()) > 5  # not one token over and over


@pytest.mark.parametrize("decoding", DECODINGS)
@FAMILIES
def test_batch_is_one_by_one(kind, decoding):
    """A batch of mixed lengths gives what each request gives alone (and padding behind it)."""
    model = controlled(kind)
    together = decode(model, sources(model), LENGTHS, **DECODINGS[decoding])
    for source, length, row in zip(
        random_rows(SIZES, eos=model.config.eos_token_id), LENGTHS, together, strict=True
    ):
        alone = decode(
            model, {"input_ids": torch.tensor([source])}, length[None], **DECODINGS[decoding]
        )[0]
        assert torch.equal(row[: len(alone)], alone)
        assert torch.isin(
            row[len(alone) :], torch.tensor([model.config.pad_token_id, model.config.eos_token_id])
        ).all()


@CACHES
@FAMILIES
def test_generation_sees_what_training_saw(kind, use_cache):
    """The logits of every generation step are those of one teacher-forced pass over the output:
    same signal, same positions.
    """
    model = controlled(kind)
    batch = sources(model)
    out = decode(
        model,
        batch,
        LENGTHS,
        use_cache=use_cache,
        output_logits=True,
        return_dict_in_generate=True,
        min_new_tokens=24,
    )
    with torch.no_grad():
        logits = model(
            **batch, decoder_input_ids=out.sequences[:, :-1], target_length=LENGTHS
        ).logits
    torch.testing.assert_close(torch.stack(out.logits, 1), logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("length_controlled", [True, False])
@pytest.mark.parametrize("decoding", DECODINGS)
@FAMILIES
def test_forced_length_is_exact(kind, decoding, length_controlled):
    """Every output has its first EOS at token l, mixed lengths (1 included) in one batch."""
    model, l = controlled(kind), torch.tensor([1, 9, 14, 5])
    forced = LogitsProcessorList([ForcedLength(l, model.config.eos_token_id)])
    given = l if length_controlled else None
    out = decode(model, sources(model), given, logits_processor=forced, **DECODINGS[decoding])
    sizes, ended = output_lengths(out[:, 1:], model.config.eos_token_id)
    assert torch.equal(sizes, l) and ended.all()


def test_generate_leaves_room_for_the_target():
    """generate(target_length=l) without max_new_tokens can reach l: a model that ends exactly at
    l ends there.
    """
    model, l = controlled(), torch.tensor([40, 30, 2, 5])
    forced = LogitsProcessorList([ForcedLength(l, model.config.eos_token_id)])
    out = model.generate(
        **sources(model), target_length=l, logits_processor=forced, do_sample=False
    )
    assert torch.equal(output_lengths(out[:, 1:], model.config.eos_token_id)[0], l)


def test_generate_stops_at_the_last_position():
    """A model that never ends is stopped, at the latest where its positions end, without an
    error.
    """
    model = controlled()
    model.final_logits_bias[0, model.config.eos_token_id] = -1e9
    out = model.generate(
        **sources(model), target_length=torch.tensor([POSITIONS - 4, 30, 2, 5]), do_sample=False
    )
    assert POSITIONS - 4 <= out.shape[1] - 1 <= POSITIONS


# ---- saving and loading ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pre", "rpe-clipped", "linear"])
@pytest.mark.parametrize("tied", [True, False])
def test_saved_is_loaded(name, tied, tmp_path):
    """save -> load: the signal, its options and its learned vector are remembered; logits are
    equal.
    """
    model, l = controlled("bart", name, tie_word_embeddings=tied), torch.tensor([30, 3, 6])
    model.save_pretrained(tmp_path)
    torch.manual_seed(9)
    loaded = LengthControlled.from_pretrained(str(tmp_path)).eval()
    assert loaded.config.length_signal == {"name": name, "options": signal_options(name)}
    with torch.no_grad():
        a, b = (m(**pairs(model), target_length=l).logits for m in (model, loaded))
    torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


@FAMILIES
def test_base_checkpoint_gets_a_fresh_signal(kind, tmp_path):
    """From a stock checkpoint: its weights unchanged, the learned vector drawn from the seed, not
    left as it was in memory.
    """
    base = stock(kind)
    base.save_pretrained(tmp_path)
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(LengthControlled.from_pretrained(str(tmp_path), signal="linear").eval())
    vectors = [m.length_signal.vector.detach() for m in models]
    assert torch.equal(vectors[0], vectors[1]) and not torch.equal(vectors[0], vectors[2])
    assert vectors[0].std().item() == pytest.approx(0.5**0.5, rel=0.5)
    with torch.no_grad():
        torch.testing.assert_close(
            models[0](**pairs(base)).logits, base(**pairs(base)).logits, atol=1e-6, rtol=0
        )


def test_signal_can_be_replaced(tmp_path):
    """`signal` overrides what a saved checkpoint remembers."""
    controlled("bart", "linear").save_pretrained(tmp_path)
    assert LengthControlled.from_pretrained(str(tmp_path), signal="rpe").config.length_signal == {
        "name": "rpe",
        "options": {},
    }


# ---- wrong input ends in one clear line ------------------------------------------------------

WRONG_LENGTHS = {
    "zero": (torch.tensor([4, 0, 4]), "positive"),
    "negative": (torch.tensor([4, 4, -3]), "positive.*-3"),
    "float": (torch.tensor([4.0, 4.0, 4.0]), "integer"),
    "list": ([4, 4, 4], "integer"),
    "too few": (torch.tensor([4, 4]), "3 examples"),
}


@pytest.mark.parametrize("what", WRONG_LENGTHS)
def test_refuses_wrong_target_length(what):
    """forward and generate alike."""
    model, (length, message) = controlled(), WRONG_LENGTHS[what]
    batch = pairs(model)
    with pytest.raises(ValueError, match=message):
        model(**batch, target_length=length)
    with pytest.raises(ValueError, match=message):
        model.generate(batch["input_ids"], target_length=length)
    with pytest.raises(ValueError, match=message):
        model.generate(input_ids=batch["input_ids"], target_length=length)


def test_refuses_length_beyond_the_positions():
    """BART holds POSITIONS tokens, not one more; relative positions (T5) have no limit."""
    bart, t5 = controlled("bart"), controlled("t5")
    decode(bart, sources(bart), torch.full((4,), POSITIONS), max_new_tokens=2)
    with pytest.raises(ValueError, match=f"beyond the model's {POSITIONS}"):
        decode(bart, sources(bart), torch.full((4,), POSITIONS + 1), max_new_tokens=2)
    assert decode(t5, sources(t5), torch.full((4,), 10 * POSITIONS), max_new_tokens=2).shape[0] == 4


@pytest.mark.parametrize("given", [{}, {"target_length": torch.tensor([4, 4])}])
def test_refuses_empty_source(given):
    model, nothing = controlled(), torch.zeros(2, 0, dtype=torch.long)
    for call in (
        lambda: model.generate(nothing, **given),
        lambda: model.generate(input_ids=nothing, **given),
        lambda: model(input_ids=nothing, decoder_input_ids=torch.tensor([[2], [2]]), **given),
    ):
        with pytest.raises(ValueError, match="empty source"):
            call()


@pytest.mark.parametrize(
    ("config", "signal", "options", "message"),
    [
        (ViTConfig, "pre", {}, "'vit' is neither an encoder-decoder"),
        (CONFIGS["bart"], "prr", {}, "unknown signal 'prr'.*pre"),
        (CONFIGS["bart"], "rpe-clipped", {}, "max_countdown"),
        (CONFIGS["bart"], None, {}, "no length signal yet.*signal='pre'"),
    ],
)
def test_refuses_wrong_model_or_signal(config, signal, options, message):
    with pytest.raises(ValueError, match=message):
        LengthControlled.from_config(config(), signal, options)
