"""Lengths in words and characters: tokens add up to the text they make, and generation is told what
it has written.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BartForConditionalGeneration, PreTrainedTokenizerFast

from lib.length.control import ALLOWANCE, Counting
from lib.length.generation import generate
from lib.length.models import LengthControlled
from lib.study.models import configuration, train_tokenizer

TEXTS = [
    "Return the naïve value — or none.",
    "The days of the week, in any order.",
    "Größe in µm, 12.5 per cent of all",
    "a b c d e",
]
TOKENIZER = train_tokenizer(TEXTS, 300)
LETTERS = st.characters(exclude_categories=("Z", "C"), exclude_characters="<>")
WORDS = st.lists(st.text(LETTERS, min_size=1), min_size=1, max_size=8)


@pytest.mark.parametrize("counted", ["words", "characters"])
@settings(deadline=None)
@given(WORDS)
def test_tokens_add_up_to_the_text(counted, words):
    """Whatever the script, and where a character is several tokens: the last sum is the length."""
    text, counting = " ".join(words), Counting(TOKENIZER, counted)
    ids = TOKENIZER(text)["input_ids"]
    expected = len(words) if counted == "words" else len(text)
    assert counting.length(ids) == expected
    assert int(counting.written(torch.tensor(ids))[-1]) == expected


def test_without_a_space_before_the_text():
    """A tokenizer that puts none before the first word (BART's own)."""
    plain = train_tokenizer(TEXTS, 300)
    plain.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for counted, expected in (("words", 8), ("characters", 35)):
        counting, ids = Counting(plain, counted), plain(TEXTS[1])["input_ids"]
        assert counting.start == (1 if counted == "words" else 0)
        assert int(counting.written(torch.tensor(ids))[-1]) == counting.length(ids) == expected


def test_special_tokens_count_nothing():
    for counted in ("words", "characters"):
        assert Counting(TOKENIZER, counted).sizes[TOKENIZER.all_special_ids].sum() == 0


def test_refuses_what_it_cannot_count():
    with pytest.raises(ValueError, match="one of tokens, words, characters, not 'lines'"):
        Counting(TOKENIZER, "lines")
    pieces = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "▁b": 2}, "[UNK]"))
    pieces = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="[UNK]")
    with pytest.raises(ValueError, match="'▁b': words and characters need a byte-level tokenizer"):
        Counting(pieces, "words")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny stock BART with its tokenizer."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("base") / "tiny"
    config = configuration(len(TOKENIZER), d_model=16, init_std=0.5)
    BartForConditionalGeneration(config).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("counted", ["words", "characters"])
@pytest.mark.parametrize("signal", ["pre", "pre-countdown", "rpe"])
def test_the_signal_is_told_what_is_written(folder, counted, signal):
    """The step is the length of the text so far, the target's own at the input that must predict
    EOS; the same logits as with those steps told to the signal by hand.
    """
    model = LengthControlled.from_pretrained(folder, signal, counted=counted).eval()
    labels = torch.tensor([TOKENIZER(TEXTS[1])["input_ids"]])
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    step, length = model._steps(inputs, None, None), model.counting.length(labels[0].tolist())
    texts = [
        TOKENIZER.decode(labels[0, :t], skip_special_tokens=True) for t in range(labels.shape[1])
    ]
    # with the tokenizer's first space
    sizes = [text.count(" ") if counted == "words" else len(text) - 1 for text in texts]
    assert step[0].tolist() == sizes and step[0, -1] == length
    request, source = torch.tensor([length]), torch.tensor([[5, 6, 2]])
    embeddings = model.model.decoder.embed_tokens(inputs) + model.length_signal(step, request)
    by_hand = model(source, decoder_inputs_embeds=embeddings).logits
    own = model(source, decoder_input_ids=inputs, target_length=request).logits
    torch.testing.assert_close(own, by_hand)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("counted", ["words", "characters"])
def test_cached_generation_is_uncached_generation(folder, counted, options):
    """The cache hides the tokens before; `written` says what they add up to."""
    model = LengthControlled.from_pretrained(folder, "pre", counted=counted).eval()
    source = torch.tensor([TOKENIZER(text)["input_ids"][:9] for text in TEXTS[:3]])

    def outputs(lengths: list[int], use_cache: bool = True) -> torch.Tensor:
        torch.manual_seed(1)
        told = {"target_length": torch.tensor(lengths), "use_cache": use_cache}
        return model.generate(source, max_new_tokens=25, **told, **options)

    assert torch.equal(outputs([3, 9, 30]), outputs([3, 9, 30], use_cache=False))
    assert not torch.equal(outputs([3, 9, 30]), outputs([4, 2, 8]))


def test_a_cache_needs_what_is_written(folder):
    model = LengthControlled.from_pretrained(folder, "pre", counted="words").eval()
    source, start, told = torch.tensor([[5, 6, 2]]), torch.tensor([[2]]), torch.tensor([3])
    first = model(source, decoder_input_ids=start, target_length=told, use_cache=True)
    with pytest.raises(ValueError, match="counting words with a cache needs `written`"):
        model(source, decoder_input_ids=start + 3, target_length=told, cache=first.cache)


def test_saved_model_remembers_what_it_counts(folder, tmp_path):
    model = LengthControlled.from_pretrained(folder, "pre", counted="words")
    model.save_pretrained(tmp_path / "mine")
    TOKENIZER.save_pretrained(tmp_path / "mine")
    again = LengthControlled.from_pretrained(str(tmp_path / "mine"))
    assert again.counting.counted == "words" and again.counting.start == model.counting.start


def test_generated_length_is_that_of_the_text(folder):
    """Measured on the decoded text; outputs that never end are capped at the allowance."""
    model = LengthControlled.from_pretrained(folder, "pre", counted="words").eval()
    asked = np.array([3, 5, 4, 6])
    out = generate(model, [TOKENIZER(text)["input_ids"] for text in TEXTS], asked)
    for row, request in zip(out.itertuples(), asked):
        text = TOKENIZER.decode(row.tokens, skip_special_tokens=True)
        assert row.generated_length == min(len(text.split()), request + ALLOWANCE)
