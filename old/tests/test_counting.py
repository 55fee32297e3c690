"""Lengths in words and characters: tokens add up to the text they make, and generation is told what it has written."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BartForConditionalGeneration, PreTrainedTokenizerFast

from old import small_bart
from old.length import evaluation
from old.length.counting import Counting
from old.length.models import LengthControlled
from old.pretrained import save_whole

TEXTS = ["Return the naïve value — or none.", "The days of the week, in any order.", "Größe in µm, 12.5 per cent of all", "a b c d e"]
TOKENIZER = small_bart.train_tokenizer(TEXTS, 300)


@pytest.mark.parametrize("counted", ["words", "characters"])
@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=("Z", "C"), exclude_characters="<>"), min_size=1), min_size=1, max_size=8))
def test_tokens_add_up_to_the_text(counted, words):
    """Whatever the script, and where a character is several tokens: the last token's sum is the length of the text."""
    text, counting = " ".join(words), Counting(TOKENIZER, counted)
    ids = TOKENIZER(text)["input_ids"]
    expected = len(words) if counted == "words" else len(text)
    assert counting.length(ids) == expected and int(counting.written(torch.tensor(ids))[-1]) == expected


def test_without_a_space_before_the_text():
    """A tokenizer that puts none before the first word (BART's own)."""
    plain = small_bart.train_tokenizer(TEXTS, 300)
    plain.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for counted, expected in (("words", 8), ("characters", 35)):
        counting = Counting(plain, counted)
        ids = plain(TEXTS[1])["input_ids"]
        assert counting.start == (1 if counted == "words" else 0)
        assert int(counting.written(torch.tensor(ids))[-1]) == counting.length(ids) == expected


def test_special_tokens_count_nothing():
    for counted in ("words", "characters"):
        assert Counting(TOKENIZER, counted).sizes[TOKENIZER.all_special_ids].sum() == 0


def test_refuses_what_it_cannot_count():
    with pytest.raises(ValueError, match="counted must be one of tokens, words, characters, not 'lines'"):
        Counting(TOKENIZER, "lines")
    pieces = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "▁b": 2}, "[UNK]")), unk_token="[UNK]"
    )
    with pytest.raises(ValueError, match="'▁b': words and characters can be counted with byte-level tokenizers only"):
        Counting(pieces, "words")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny stock BART with its tokenizer."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("base") / "tiny"
    save_whole(BartForConditionalGeneration(small_bart.configuration(len(TOKENIZER), d_model=16, init_std=0.5)), TOKENIZER, path)
    return path


@pytest.mark.parametrize("counted", ["words", "characters"])
@pytest.mark.parametrize("signal", ["pre", "pre-countdown", "rpe"])
def test_the_signal_is_told_what_is_written(folder, counted, signal):
    """The step is the length of the text so far, the target's own at the input that must predict EOS; the embedding is E + signal."""
    model = LengthControlled.from_pretrained(str(folder), signal, counted=counted).eval()
    labels = torch.tensor([TOKENIZER(TEXTS[1])["input_ids"]])
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    step, length = model._steps(inputs, None, None), torch.tensor([model.counting.length(labels[0].tolist())])
    texts = [TOKENIZER.decode(labels[0, :t], skip_special_tokens=True) for t in range(labels.shape[1])]  # with the tokenizer's first space
    sizes = [text.count(" ") if counted == "words" else len(text) - 1 for text in texts]
    assert step[0].tolist() == sizes and step[0, -1] == length
    expected = model.model.decoder.embed_tokens(inputs) + model.length_signal(step, length)
    torch.testing.assert_close(model._controlled_embeddings(inputs, step, length), expected)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("counted", ["words", "characters"])
def test_cached_generation_is_uncached_generation(folder, counted, options):
    """The cache hides the tokens before; `written` says what they add up to."""
    model = LengthControlled.from_pretrained(str(folder), "pre", counted=counted).eval()
    source = torch.tensor([TOKENIZER(text)["input_ids"][:9] for text in TEXTS[:3]])
    outputs = []
    for use_cache in (True, False):
        torch.manual_seed(1)
        outputs.append(model.generate(source, target_length=torch.tensor([3, 9, 30]), max_new_tokens=25, use_cache=use_cache, **options))
    assert torch.equal(*outputs)
    torch.manual_seed(1)
    other = model.generate(source, target_length=torch.tensor([4, 2, 8]), max_new_tokens=25, **options)
    assert not torch.equal(outputs[0], other)


def test_a_cache_needs_what_is_written(folder):
    model = LengthControlled.from_pretrained(str(folder), "pre", counted="words").eval()
    source, start = torch.tensor([[5, 6, 2]]), torch.tensor([[2]])
    cache = model(source, decoder_input_ids=start, target_length=torch.tensor([3]), use_cache=True).cache
    with pytest.raises(ValueError, match="counting words with a cache needs `written`"):
        model(source, decoder_input_ids=start + 3, target_length=torch.tensor([3]), cache=cache)


def test_saved_model_remembers_what_it_counts(folder, tmp_path):
    model = LengthControlled.from_pretrained(str(folder), "pre", counted="words")
    save_whole(model, TOKENIZER, tmp_path / "mine")
    again = LengthControlled.from_pretrained(str(tmp_path / "mine"))
    assert again.counting.counted == "words" and again.counting.start == model.counting.start


def test_generated_length_is_that_of_the_text(folder):
    """`evaluation.generate` measures the decoded text, not the model's own sum; outputs that never end are capped at the allowance."""
    model = LengthControlled.from_pretrained(str(folder), "pre", counted="words").eval()
    out = evaluation.generate(model, [TOKENIZER(t)["input_ids"] for t in TEXTS], np.array([3, 5, 4, 6]))
    for size, capped, tokens, asked in zip(out["generated_length"], out["capped"], out["tokens"], (3, 5, 4, 6)):
        text = TOKENIZER.decode(tokens, skip_special_tokens=True)
        assert size == min(len(text.split()), asked + evaluation.ALLOWANCE)
        assert capped or len(tokens) < model.most_new_tokens(asked)
