"""Length-controlled causal models against the stock models of transformers they extend, from single inputs to a whole unit."""

import dataclasses
import math
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import CONFIGS, causal_tokenizer, controlled
from safetensors.torch import load_file
from transformers import BloomConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LogitsProcessorList
from transformers.pytorch_utils import Conv1D

from old import paths
from old.length import corpora, evaluation, experiment, finetuning
from old.length.decoder_only import GATES, SHARE
from old.length.experiment import Settings, plan
from old.length.lora import add_lora
from old.length.models import ForcedLength, LengthControlled
from old.length.prompts import NumberedPrompt, prompt_ids, response_ids
from old.parameters import settings_from
from old.pretrained import save_whole
from old.seq2seq import seq2seq_loss

CONTEXT, EOS, TOLERANCE = 64, 2, {"atol": 1e-5, "rtol": 0}
_COMMON = {
    "vocab_size": 60,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
MODELS = {  # weights this large give a varied output; the smaller ones of GPT-2 keep its positions visible
    "llama": lambda **options: LlamaConfig(
        **{**_COMMON, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, **options}
    ),
    "gpt2": lambda **options: GPT2Config(
        **{**_COMMON, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT, "resid_pdrop": 0, "embd_pdrop": 0,
           "attn_pdrop": 0, **options}
    ),
}  # fmt: skip
STOCK = {"llama": LlamaForCausalLM, "gpt2": GPT2LMHeadModel}
FAMILIES = pytest.mark.parametrize("kind", MODELS)
DECODINGS = {"greedy": {}, "beams": {"num_beams": 3}, "sampling": {"do_sample": True}}
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15], [16, 17, 18, 19, 20]]
RESPONSES = [[21, 22, 23, EOS], [24, EOS], [25, 26, 27, 28, 29, 30, EOS], [EOS]]
LENGTHS = torch.tensor([4, 2, 7, 1])


def causal(kind: str = "llama", signal: str = "pre", gate: str = "scaled", opened: float = 0.7, **options):
    """A tiny model in eval mode, the same weights for the same signal; a gate "tanh" is opened, or the signal would be zero."""
    torch.manual_seed(3)
    model = LengthControlled.from_config(MODELS[kind](**options), signal, gate=gate).eval()
    if gate == "tanh":
        model.gate.g.data.fill_(opened)
    return model


def stock(kind: str, ours):
    """The stock model with the same weights."""
    model = STOCK[kind](MODELS[kind]())
    model.load_state_dict({name: value for name, value in ours.state_dict().items() if not name.startswith(("gate", "length_signal"))})
    return model.eval()


def decode(model, batch: dict, **options) -> torch.Tensor:
    torch.manual_seed(0)
    out = model.generate(**batch, **{"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12, "pad_token_id": 0, **options})
    return out[:, batch["input_ids"].shape[1] :]


def full_logits(model, prompt: list[int], response: list[int], **options) -> torch.Tensor:
    """Logits of every response token of one example, without padding or selected columns. (T, V)"""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response[:-1]]), **options).logits[0]
    return logits[len(prompt) - 1 :]


def told(prompt: list[int], length: int | torch.Tensor) -> dict:
    return {"target_length": torch.tensor([int(length)]), "prompt_width": len(prompt)}


# ---- zero signal = stock model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("signal", "gate", "opened"), [("none", "scaled", 0.0), ("number-in-prompt", "tanh", 0.7), ("pre", "tanh", 0.0)])
@FAMILIES
def test_zero_signal_is_the_stock_model(kind, signal, gate, opened, monkeypatch):
    """No signal, or a gate at its start: logits and every decoding are stock, exactly."""
    monkeypatch.setattr(
        "old.length.decoder_only.DecoderOnlyMixin.complete", lambda self, tokenizer: self.config.length_signal.update(scale=1.0)
    )
    ours = causal(kind, signal, gate, opened)
    theirs, batch = stock(kind, ours), ours.pair_batch(PROMPTS, RESPONSES, LENGTHS)
    del batch["labels"]
    with torch.no_grad():
        a = ours(**batch).logits
        b = theirs(**{name: value for name, value in batch.items() if name not in ("target_length", "prompt_width")}).logits
    assert torch.equal(a, b)
    plain = ours.source_batch(PROMPTS)
    for options in DECODINGS.values():
        assert torch.equal(decode(ours, ours.source_batch(PROMPTS, LENGTHS), **options), decode(theirs, plain, **options))


@FAMILIES
def test_without_target_length_it_is_uncontrolled(kind):
    ours = causal(kind)
    assert torch.equal(decode(ours, ours.source_batch(PROMPTS)), decode(stock(kind, ours), ours.source_batch(PROMPTS)))
    assert not torch.equal(decode(ours, ours.source_batch(PROMPTS)), decode(ours, ours.source_batch(PROMPTS, LENGTHS + 9)))


# ---- X = E + gate * signal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", GATES)
@FAMILIES
def test_embeddings(kind, gate):
    """What the stock model is handed is E + gate * signal: step 0 on the prompt, 1 at its last token, l where EOS is predicted."""
    model, seen = causal(kind, gate=gate), []
    model.base_model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["inputs_embeds"]), with_kwargs=True)
    batch = model.pair_batch(PROMPTS, RESPONSES, LENGTHS)
    del batch["labels"]
    embeddings = model.get_input_embeddings().weight.detach()
    with torch.no_grad():
        model(**batch)
    factor = math.tanh(0.7) if gate == "tanh" else (SHARE * embeddings.square().sum(1).sqrt().mean() / math.sqrt(16 / 2)).item()
    for row, (prompt, response, length) in enumerate(zip(PROMPTS, RESPONSES, LENGTHS.tolist())):
        start = max(map(len, PROMPTS)) - len(prompt)
        inputs = prompt + response[:-1]
        steps = [0] * (len(prompt) - 1) + list(range(1, len(response) + 1))
        assert len(steps) == len(inputs) and steps[-1] == length
        signal = model.length_signal(torch.tensor([steps]), torch.tensor([length]))[0]
        expected = embeddings[inputs] + factor * signal
        torch.testing.assert_close(seen[0][row, start : start + len(inputs)], expected, **TOLERANCE)


def test_progress_ratio_of_the_prompt():
    """ξ(0) = (0, 1, 0, 1, ...) on the prompt."""
    model = causal()
    assert torch.equal(model.length_signal(torch.tensor([0]), torch.tensor([9]))[0, 0], torch.tensor([0.0, 1.0] * 8))


def test_scaled_signal_has_a_share_of_the_norm_of_embeddings():
    model = causal(gate="scaled")
    norm = model.config.length_signal["scale"] * model.length_signal(torch.tensor([3]), torch.tensor([9])).norm()
    assert norm.item() == pytest.approx(SHARE * model.get_input_embeddings().weight.norm(dim=1).mean().item(), abs=1e-5)


@FAMILIES
def test_target_length_matters(kind):
    model = causal(kind)
    five, nine, again = (full_logits(model, PROMPTS[0], RESPONSES[0], **told(PROMPTS[0], l)) for l in (5, 9, 5))
    assert torch.equal(five, again) and (five - nine).abs().max() > 1e-2


@pytest.mark.parametrize("gate", GATES)
def test_half_precision(gate):
    model = causal(gate=gate).bfloat16()
    batch = model.pair_batch(PROMPTS, RESPONSES, LENGTHS)
    del batch["labels"]
    with torch.no_grad():
        assert model(**batch).logits.dtype == torch.bfloat16


# ---- batches -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("controlled", [True, False])
@FAMILIES
def test_batch_is_each_example_alone(kind, controlled):
    """Teacher forcing: padding left and right changes no logit, and there are none but those of the responses."""
    model = causal(kind)
    batch = model.pair_batch(PROMPTS, RESPONSES, LENGTHS if controlled else None)
    labels = batch.pop("labels")
    assert [row[row != -100].tolist() for row in labels] == RESPONSES
    with torch.no_grad():
        logits = model(**batch).logits
    assert logits.shape == (4, 7, 60)
    for row, prompt, response, length in zip(logits, PROMPTS, RESPONSES, LENGTHS):
        options = told(prompt, length) if controlled else {}
        torch.testing.assert_close(row[: len(response)], full_logits(model, prompt, response, **options), **TOLERANCE)


@pytest.mark.parametrize("decoding", ["greedy", "beams"])
@FAMILIES
def test_generated_batch_is_each_example_alone(kind, decoding):
    model = causal(kind)
    together = decode(model, model.source_batch(PROMPTS, LENGTHS + 9), **DECODINGS[decoding])
    for row, prompt, length in zip(together, PROMPTS, LENGTHS + 9):
        assert torch.equal(row, decode(model, model.source_batch([prompt], length[None]), **DECODINGS[decoding])[0])
    assert len(together.unique()) > 5  # not one token over and over


@pytest.mark.parametrize("decoding", DECODINGS)
@FAMILIES
def test_cache_changes_nothing(kind, decoding):
    model = causal(kind)
    batch = model.source_batch(PROMPTS, LENGTHS + 9)
    cached, uncached = (decode(model, batch, use_cache=on, **DECODINGS[decoding]) for on in (True, False))
    assert torch.equal(cached, uncached)


@pytest.mark.parametrize("use_cache", [True, False])
@FAMILIES
def test_generation_sees_what_training_saw(kind, use_cache):
    """The logits of every generation step are those of teacher forcing on the output."""
    model = causal(kind)
    batch = model.source_batch(PROMPTS, LENGTHS + 9)
    torch.manual_seed(0)
    out = model.generate(
        **batch, do_sample=True, max_new_tokens=12, min_new_tokens=12, use_cache=use_cache, output_logits=True, return_dict_in_generate=True
    )
    responses = out.sequences[:, model.prompt_length(batch) :].tolist()
    forced = model.pair_batch(PROMPTS, responses, LENGTHS + 9)
    del forced["labels"]
    with torch.no_grad():
        torch.testing.assert_close(torch.stack(out.logits, 1), model(**forced).logits, **TOLERANCE)


@pytest.mark.parametrize("use_cache", [True, False])
@FAMILIES
def test_steps_of_generation(kind, use_cache):
    """The prompt with its last token at step 1, then 2, 3, ... alone with a cache, all of them without; one length a beam."""
    model, calls = causal(kind), []
    model.length_signal.register_forward_pre_hook(lambda _, given: calls.append((given[0].tolist(), given[1].tolist())))
    decode(model, model.source_batch(PROMPTS[:2], LENGTHS[:2]), num_beams=2, use_cache=use_cache, max_new_tokens=4, min_new_tokens=4)
    prompt = [0] * 6 + [1]
    steps = [prompt] + [[t] if use_cache else [*prompt, *range(2, t + 1)] for t in (2, 3, 4)]
    assert calls == [(step, [4, 4, 2, 2]) for step in steps]


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"controlled": False}], ids=str)
def test_forced_generation_is_exact(options, monkeypatch):
    monkeypatch.setattr(evaluation, "ALLOWANCE", 8)
    out = evaluation.generate(causal(), PROMPTS, LENGTHS.numpy() + 9, forced=True, **options)
    assert out["generated_length"].tolist() == (LENGTHS + 9).tolist() and not out["capped"].any()


def test_generated_tokens_are_new_ones(monkeypatch):
    """`evaluation.generate`: the outputs of stock `generate` behind the prompt, in the order of the sources, whatever the batches."""
    monkeypatch.setattr(evaluation, "ALLOWANCE", 8)
    model = causal("gpt2")
    one, two = (evaluation.generate(model, PROMPTS, LENGTHS.numpy(), batch_size=n) for n in (4, 3))
    pd.testing.assert_frame_equal(one, two)
    for prompt, length, row in zip(PROMPTS, LENGTHS, one.itertuples()):
        out = model.generate(
            torch.tensor([prompt]), target_length=length[None], max_new_tokens=8 + int(length), do_sample=False, pad_token_id=0
        )
        assert row.tokens == [token for token in out[0, len(prompt) :].tolist() if token != EOS]


def test_generate_leaves_room_for_the_target():
    """Without a limit of the caller, outputs may run past the request, but not past the context."""
    model, l = causal(), torch.tensor([40, 3, 2, 5])
    forced = LogitsProcessorList([ForcedLength(l, EOS, prompt_length=7)])
    out = model.generate(**model.source_batch(PROMPTS, l), logits_processor=forced, do_sample=False, pad_token_id=0)
    assert evaluation.output_lengths(out[:, 7:], EOS)[0].tolist() == l.tolist()
    assert model.most_new_tokens(40, source_width=7) == CONTEXT - 7


# ---- likelihood ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, [9, 2, 30, 5]], ids=["not told", "told a length"])
@FAMILIES
def test_likelihood_is_the_sum_by_hand(kind, lengths, monkeypatch):
    """From full logits of single examples, whatever the batches: EOS as it is, other tokens given that the text goes on."""
    monkeypatch.setattr(evaluation, "MOST_LOGITS", 3 * 7 * 60)  # three rows of the longest
    model = causal(kind)
    nll = evaluation.negative_log_likelihood(model, PROMPTS, RESPONSES, None if lengths is None else np.array(lengths))
    for i, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES)):
        log_p = full_logits(model, prompt, response, **(told(prompt, lengths[i]) if lengths else {})).double().log_softmax(-1)
        content = -sum(log_p[t, token] - (1 - log_p[t, EOS].exp()).log() for t, token in enumerate(response[:-1]))
        assert nll["nll_content"][i] == pytest.approx(float(content), abs=1e-4)
        assert nll["nll_eos"][i] == pytest.approx(-log_p[-1, EOS].item(), abs=1e-5)
        assert nll["content_tokens"][i] == len(response) - 1


@FAMILIES
def test_loss_is_that_of_the_responses(kind):
    model = causal(kind)
    loss, count = seq2seq_loss(model, model.pair_batch(PROMPTS, RESPONSES, LENGTHS))
    expected = 0.0
    for prompt, response, length in zip(PROMPTS, RESPONSES, LENGTHS):
        log_p = full_logits(model, prompt, response, **told(prompt, length)).log_softmax(-1)
        expected -= log_p[range(len(response)), response].sum().item()
    assert count == 14 and loss.item() == pytest.approx(expected, rel=1e-5)


# ---- LoRA ----------------------------------------------------------------------------------------------------------------------------


@FAMILIES
def test_lora_at_its_start_is_the_base(kind):
    """And only LoRA, gate and signal are trained; every linear layer has LoRA but the unembedding."""
    model = causal(kind, "linear", gate="tanh")
    batch = model.pair_batch(PROMPTS, RESPONSES, LENGTHS)
    del batch["labels"]
    names = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)} - {"lm_head"}
    assert len(names) == 2 * {"llama": 7, "gpt2": 4}[kind]
    with torch.no_grad():
        before = model(**batch).logits
        add_lora(model)
        assert torch.equal(model.eval()(**batch).logits, before)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if "lora_" not in name} == {"gate.g", "length_signal.vector"}
    assert {name.partition(".lora_")[0] for name in trained if "lora_" in name} == names and len(trained) == 2 + 2 * len(names)
    seq2seq_loss(model, batch | {"labels": model.pair_batch(PROMPTS, RESPONSES)["labels"]})[0].backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None and parameter.grad.abs().max() > 0}
    assert moved == {name for name in trained if "lora_A" not in name}  # B is 0, so A waits for its first update


@pytest.mark.parametrize(("signal", "gate"), [("pre", "scaled"), ("linear", "tanh")])
@FAMILIES
def test_saved_is_loaded(kind, signal, gate, tmp_path):
    """`save_pretrained` -> `from_pretrained`: signal, gate and its value are remembered, also where embeddings changed since."""
    model = causal(kind, signal, gate)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    model.save_pretrained(tmp_path)
    torch.manual_seed(9)
    loaded = LengthControlled.from_pretrained(str(tmp_path)).eval()
    for prompt, response in zip(PROMPTS, RESPONSES):
        a, b = (full_logits(m, prompt, response, **told(prompt, 9)) for m in (model, loaded))
        torch.testing.assert_close(a, b, **TOLERANCE)


@pytest.mark.parametrize("gate", GATES)
def test_base_checkpoint_gets_a_fresh_gate(gate, tmp_path):
    """From a stock checkpoint: the learned gate at 0, the fixed one by the checkpoint's own embeddings."""
    base = stock("llama", causal())
    base.save_pretrained(tmp_path)
    model = LengthControlled.from_pretrained(str(tmp_path), "pre", gate=gate)
    if gate == "tanh":
        assert model.gate.g.item() == 0 and model.gate.g.requires_grad
    else:
        norm = base.get_input_embeddings().weight.norm(dim=1).mean().item()
        assert model.config.length_signal["scale"] == pytest.approx(SHARE * norm / math.sqrt(8), rel=1e-6)


# ---- prompts -------------------------------------------------------------------------------------------------------------------------

TOKENIZER = causal_tokenizer()


def test_prompts_and_responses():
    """The words around the source, a cut source, no EOS; " " and EOS around the target; the number asked for before the last colon."""
    (whole, cut), (response,) = (
        prompt_ids(TOKENIZER, ["the cat", "the cat is not on the mat"], ("Summary", "Description"), 3), response_ids(TOKENIZER, ["the mat"])
    )  # fmt: skip

    def text(ids: list[int]) -> str:
        return "".join(TOKENIZER.convert_ids_to_tokens(ids)).replace("Ġ", " ").replace("Ċ", "\n").strip()

    assert (
        text(whole).replace("  ", " ") == text(whole)
        and text(whole).startswith("Summary: the cat")
        and text(whole).endswith("Description :")
    )
    assert len(cut) == len(whole) - len(TOKENIZER(" the cat", add_special_tokens=False)["input_ids"]) + 3
    assert TOKENIZER.eos_token_id not in whole and response[-1] == TOKENIZER.eos_token_id and text(response[:-1]) == "the mat"
    numbered = NumberedPrompt(TOKENIZER)
    assert "".join(text(numbered(whole, 123)).split()).endswith("Description(123tokens):")
    with pytest.raises(ValueError, match="must end with ':'"):
        numbered(whole[:-1], 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny Llama with a tokenizer, as a checkpoint on disk."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("base") / "tiny-llama"
    save_whole(LlamaForCausalLM(MODELS["llama"](vocab_size=300, max_position_embeddings=512)), TOKENIZER, path)
    return path


def test_number_is_in_the_prompt(folder):
    """The model that asks in words gets the number asked for, and only then; its signal is zero. Other models get none."""
    model, other = (LengthControlled.from_pretrained(str(folder), name).eval() for name in ("number-in-prompt", "pre"))
    prompts, lengths = prompt_ids(TOKENIZER, ["the cat", "the mat is on"], ("Summary", "Description"), 9), torch.tensor([12, 7])
    batch = model.source_batch(prompts, lengths)
    texts = ["".join(TOKENIZER.decode(row[mask.bool()]).split()) for row, mask in zip(batch["input_ids"], batch["attention_mask"])]
    assert texts == ["Summary:thecatDescription(12tokens):", "Summary:thematisonDescription(7tokens):"]
    width = batch["input_ids"].shape[1]
    assert torch.equal(model.pair_batch(prompts, [[5, EOS], [EOS]], lengths)["input_ids"][:, :width], batch["input_ids"])
    for plain in (model.source_batch(prompts), other.source_batch(prompts, lengths)):
        assert [row[mask.bool()].tolist() for row, mask in zip(plain["input_ids"], plain["attention_mask"])] == prompts


# ---- the experiment ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def toy(folder, tmp_path, monkeypatch) -> dict:
    """Parameters of a study of toy size: sixty pairs of a few words, the tiny Llama, a cache of its own."""
    words = 4 * ["return", "the", "number", "cat", "mat", "value", "is", "not"]
    rows = [
        {"id": i, "source": " ".join(words[i % 5 : i % 5 + 2]), "target": " ".join(words[i % 7 : i % 7 + (25 if i > 54 else 1 + i % 3)]),
         "group": i, "split": "train" if i < 40 else "test"}
        for i in range(60)
    ]  # fmt: skip
    corpus = dataclasses.replace(
        corpora.DATASETS["docstrings"], load=lambda: datasets.Dataset.from_list(rows), fingerprint=lambda: "toy", max_source=8
    )
    monkeypatch.setitem(corpora.DATASETS, "toy", corpus)
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    finetuning.prepare.cache_clear()
    yield {
        "dataset": "toy", "model": str(folder), "max_train_length": 20, "finetune_updates": 3, "items": 2, "tokens_per_batch": 64,
        "signals": ["pre"], "seeds": [0],
    }  # fmt: skip
    finetuning.prepare.cache_clear()


@pytest.mark.parametrize("signal", ["none", "pre", "number-in-prompt"])
def test_a_unit(toy, signal):
    """From corpus to rows with the same code as for encoder-decoders; control in every bucket, quality, perplexity; the learned gate."""
    for part in ("in-distribution", "unseen"):
        (unit,) = plan([part], toy | {"signals": [signal]})
        rows, items = experiment.compute(unit)
        assert {"mae", "ppl_content", "ppl_eos", "bleu", "gate"} <= set(rows["metric"]) and len(items) and (rows["method"] == signal).all()
        assert items["generated_length"].dropna().ge(1).all()


def test_gate_of_a_notebook(toy):
    """A notebook that declares `gate` gets units that depend on it, in a study of their own; the units of others do not have it."""
    (without,), (tanh,), (scaled,) = (plan(["unseen"], toy | given) for given in ({}, {"gate": "tanh"}, {"gate": "scaled"}))
    assert "gate" not in without.parameters and tanh.parameters["gate"] == "tanh"
    assert len({without.key, tanh.key, scaled.key}) == 3
    assert without.study == "length" and tanh.study == scaled.study == "decoder-only"


@pytest.mark.parametrize("gate", GATES)
def test_trained_tensors(toy, gate, tmp_path):
    """The cache holds what was trained, nothing of the base; a model with them loaded gives the same outputs."""
    (unit,) = plan(["in-distribution"], toy | {"signals": ["bucket"], "gate": gate})
    settings = settings_from(Settings, unit.parameters)
    data = finetuning.prepare(settings)
    trained = finetuning.trained_model(unit, settings, data)
    (file,) = (tmp_path / "models").iterdir()
    stored = load_file(file)
    assert {name for name in stored if "lora_" not in name} == {"length_signal.table"} | ({"gate.g"} if gate == "tanh" else set())
    assert any(value.abs().max() > 0 for name, value in stored.items() if "lora_B" in name)
    assert gate != "tanh" or stored["gate.g"].abs() > 1e-4
    loaded = finetuning.trained_model(unit, settings, data)
    batch = trained.pair_batch(data.pairs["source_ids"].tolist()[:4], data.pairs["target_ids"].tolist()[:4], LENGTHS)
    del batch["labels"]
    with torch.no_grad():
        assert torch.equal(trained(**batch).logits, loaded(**batch).logits)
        base = LengthControlled.from_pretrained(toy["model"], "none").eval()
        assert (base(**batch).logits - loaded(**batch).logits).abs().max() > 1e-5


# ---- wrong input ends in one clear line ----------------------------------------------------------------------------------------------


def test_refuses_wrong_requests():
    model = causal()
    batch = model.source_batch(PROMPTS)
    for length, message in ((torch.tensor([4, 0, 4, 4]), "at least 1"), (torch.tensor([4, 4]), "4 examples"), (LENGTHS.float(), "integer")):
        with pytest.raises(ValueError, match=message):
            model.generate(**batch, target_length=length)
        with pytest.raises(ValueError, match=message):
            model(**batch, target_length=length, prompt_width=7)
    with pytest.raises(ValueError, match=f"beyond the model's {CONTEXT - 7}"):
        model.generate(**batch, target_length=LENGTHS + CONTEXT - 7)
    with pytest.raises(ValueError, match="prompt_width beside it"):
        model(**batch, target_length=LENGTHS)
    with pytest.raises(ValueError, match="padded on the left"):
        model.generate(batch["input_ids"], attention_mask=batch["attention_mask"].flip(1), target_length=LENGTHS)
    with pytest.raises(ValueError, match="empty source"):
        model.generate(torch.zeros(4, 0, dtype=torch.long), target_length=LENGTHS)
    with pytest.raises(ValueError, match="not for the stock loss"):
        model(**model.pair_batch(PROMPTS, RESPONSES, LENGTHS))


def test_refuses_what_does_not_fit_the_context(toy):
    """Before training: the longest prompt, the longest request and the allowance."""
    (unit,) = plan(["unseen"], toy | {"max_train_length": 100})
    settings = settings_from(Settings, unit.parameters)
    with pytest.raises(ValueError, match=r"decoder positions behind a prompt of \d+ tokens, but the requested lengths need 500"):
        finetuning.trained_model(unit, settings, finetuning.prepare(settings))
    assert not (paths.CACHE / "models").exists()
    model = causal()
    assert finetuning.check_room(model, PROMPTS, CONTEXT - 7) is None
    with pytest.raises(ValueError, match=f"need {CONTEXT - 6}"):
        finetuning.check_room(model, PROMPTS, CONTEXT - 6)


@pytest.mark.parametrize(
    ("config", "signal", "gate", "message"),
    [
        (CONFIGS["bart"], "number-in-prompt", None, "'number-in-prompt' is for decoder-only models"),
        (CONFIGS["bart"], "pre", "tanh", "encoder-decoder has no gate"),
        (MODELS["llama"], "pre", "sigmoid", "unknown gate 'sigmoid'.*tanh, scaled"),
        (MODELS["llama"], "number-in-prompt", None, "needs the tokenizer beside a checkpoint"),
        (lambda: BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=60), "pre", None, "BloomForCausalLM does not take"),
    ],
)
def test_refuses_wrong_model_signal_or_gate(config, signal, gate, message):
    with pytest.raises(ValueError, match=message):
        LengthControlled.from_config(config(), signal, gate=gate)


def test_refuses_counted_words(folder):
    with pytest.raises(ValueError, match="count tokens, not words"):
        LengthControlled.from_pretrained(str(folder), "pre", counted="words")


def test_encoder_decoders_have_the_same_methods():
    """The experiment asks both kinds of model in the same way."""
    model = controlled()
    batch = model.source_batch([[5, 6, EOS], [7, EOS]], torch.tensor([4, 9]))
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]] and batch["target_length"].tolist() == [4, 9]
    assert model.prompt_length(batch) == 1 and "target_length" not in model.source_batch([[5, EOS]])
    assert {"labels", "decoder_input_ids", "target_length"} <= set(model.pair_batch([[5, EOS]], [[6, EOS]], torch.tensor([2])))
