"""Length-controlled causal models against the stock models of transformers that they extend."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import (
    BartConfig,
    BloomConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
)
from transformers.pytorch_utils import Conv1D

from lib.length.control import ALLOWANCE
from lib.length.decoder_only import (
    GATES,
    SHARE,
    add_lora,
    labelled_prompts,
    numbered_prompt,
    responses,
)
from lib.length.finetuning import check_room, fine_tune
from lib.length.generation import ForcedLength, generate, likelihoods, output_lengths
from lib.length.models import LengthControlled
from lib.study.models import seq2seq_loss, train_tokenizer

CONTEXT, EOS, CLOSE = 140, 2, {"atol": 1e-5, "rtol": 0}
COMMON = {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": None}
COMMON |= {"initializer_range": 0.3, "tie_word_embeddings": False}  # a varied output
LLAMA = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT}
GPT2 |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
CONFIGS = {"llama": (LlamaConfig, LLAMA), "gpt2": (GPT2Config, GPT2)}
STOCK = {"llama": LlamaForCausalLM, "gpt2": GPT2LMHeadModel}
FAMILIES = pytest.mark.parametrize("kind", CONFIGS)
DECODINGS = {"greedy": {}, "beams": {"num_beams": 3}, "sampling": {"do_sample": True}}
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15], [16, 17, 18, 19, 20]]
RESPONSES = [[21, 22, 23, EOS], [24, EOS], [25, 26, 27, 28, 29, 30, EOS], [EOS]]
LENGTHS = torch.tensor([4, 2, 7, 1])


def configuration(kind: str):
    config, options = CONFIGS[kind]
    return config(**COMMON, **options)


def causal(kind: str = "llama", signal: str = "pre", gate: str = "scaled", opened: float = 0.7):
    """A tiny model in eval mode, the same weights for the same signal; a gate "tanh" is opened, or
    the signal would be zero.
    """
    torch.manual_seed(3)
    model = LengthControlled.from_config(configuration(kind), signal, gate=gate).eval()
    if gate == "tanh":
        model.gate["g"].data.fill_(opened)
    return model


def stock(kind: str, ours):
    """The stock model with the same weights."""
    model, added = STOCK[kind](configuration(kind)), ("gate", "length_signal")
    own = {name: value for name, value in ours.state_dict().items() if not name.startswith(added)}
    model.load_state_dict(own)
    return model.eval()


def decode(model, batch: dict, **options) -> torch.Tensor:
    """Eight new tokens. (B, 8)"""
    torch.manual_seed(0)
    habits = {"do_sample": False, "max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": 0}
    out = model.generate(**batch, **habits | options)
    return out[:, batch["input_ids"].shape[1] :]


def teacher_forced(model, lengths: torch.Tensor | None = LENGTHS, given=RESPONSES) -> dict:
    """A batch for `forward` without labels."""
    batch = model.pair_batch(PROMPTS, given, lengths)
    del batch["labels"]
    return batch


def logits_alone(model, prompt: list[int], response: list[int], length=None) -> torch.Tensor:
    """Logits of the response's tokens of one example, without padding or columns. (T, V)"""
    request = {}
    if length is not None:
        request = {"target_length": torch.tensor([int(length)]), "prompt_width": len(prompt)}
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response[:-1]]), **request).logits[0]
    return logits[len(prompt) - 1 :]


# ---- zero signal = stock model -----------------------------------------------------------------


@pytest.mark.parametrize(("signal", "gate"), [("none", "scaled"), ("pre", "tanh")])
@FAMILIES
def test_zero_signal_is_the_stock_model(kind, signal, gate):
    """No signal, or a gate at its start: logits and every decoding are stock, exactly."""
    ours = causal(kind, signal, gate, opened=0.0)
    theirs, batch = stock(kind, ours), teacher_forced(ours)
    ordinary = {name: value for name, value in batch.items() if name not in REQUEST}
    with torch.no_grad():
        assert torch.equal(ours(**batch).logits, theirs(**ordinary).logits)
    for options in DECODINGS.values():
        a = decode(ours, ours.source_batch(PROMPTS, LENGTHS), **options)
        assert torch.equal(a, decode(theirs, ours.source_batch(PROMPTS), **options))


REQUEST = ("target_length", "prompt_width")


@FAMILIES
def test_without_target_length_it_is_uncontrolled(kind):
    ours = causal(kind)
    plain = decode(ours, ours.source_batch(PROMPTS))
    assert torch.equal(plain, decode(stock(kind, ours), ours.source_batch(PROMPTS)))
    assert not torch.equal(plain, decode(ours, ours.source_batch(PROMPTS, LENGTHS + 9)))


# ---- X = E + gate * signal ---------------------------------------------------------------------


@pytest.mark.parametrize("gate", GATES)
@FAMILIES
def test_embeddings(kind, gate):
    """The stock model gets E + gate * signal: step 0 on the prompt, 1 at its last token, l where
    EOS is predicted; a scaled signal has a share of the embeddings' mean norm.
    """
    model, handed = causal(kind, gate=gate), []
    model.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: handed.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    with torch.no_grad():
        model(**teacher_forced(model))
    embeddings = model.get_input_embeddings().weight.detach()
    norm = embeddings.square().sum(1).sqrt().mean().item()
    factor = math.tanh(0.7) if gate == "tanh" else SHARE * norm / math.sqrt(16 / 2)
    for row, (prompt, response, length) in enumerate(zip(PROMPTS, RESPONSES, LENGTHS.tolist())):
        start, inputs = max(map(len, PROMPTS)) - len(prompt), prompt + response[:-1]
        steps = [0] * (len(prompt) - 1) + list(range(1, len(response) + 1))
        assert len(steps) == len(inputs) and steps[-1] == length
        signal = model.length_signal(torch.tensor([steps]), torch.tensor([length]))[0]
        expected = embeddings[inputs] + factor * signal
        ours = handed[0][row, start : start + len(inputs)]
        torch.testing.assert_close(ours, expected, **CLOSE)


def test_progress_ratio_of_the_prompt():
    """ξ(0) = (0, 1, 0, 1, ...) on the prompt."""
    ratio = causal().length_signal(torch.tensor([0]), torch.tensor([9]))[0, 0]
    assert torch.equal(ratio, torch.tensor([0.0, 1.0] * 8))


@FAMILIES
def test_target_length_matters(kind):
    model = causal(kind)
    five, nine, again = (logits_alone(model, PROMPTS[0], RESPONSES[0], l) for l in (5, 9, 5))
    assert torch.equal(five, again) and (five - nine).abs().max() > 1e-2


@pytest.mark.parametrize("gate", GATES)
def test_half_precision(gate):
    model = causal(gate=gate).bfloat16()
    with torch.no_grad():
        assert model(**teacher_forced(model)).logits.dtype == torch.bfloat16


# ---- batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("controlled", [True, False])
@FAMILIES
def test_batch_is_each_example_alone(kind, controlled):
    """Padding left and right changes no logit; there are none but those of the responses."""
    model = causal(kind)
    batch = model.pair_batch(PROMPTS, RESPONSES, LENGTHS if controlled else None)
    assert [row[row != -100].tolist() for row in batch.pop("labels")] == RESPONSES
    with torch.no_grad():
        logits = model(**batch).logits
    assert logits.shape == (4, 7, 60)
    for row, prompt, response, length in zip(logits, PROMPTS, RESPONSES, LENGTHS):
        alone = logits_alone(model, prompt, response, length if controlled else None)
        torch.testing.assert_close(row[: len(response)], alone, **CLOSE)


@pytest.mark.parametrize("decoding", ["greedy", "beams"])
@FAMILIES
def test_generated_batch_is_each_example_alone(kind, decoding):
    model = causal(kind)
    together = decode(model, model.source_batch(PROMPTS, LENGTHS + 9), **DECODINGS[decoding])
    for row, prompt, length in zip(together, PROMPTS, LENGTHS + 9):
        alone = model.source_batch([prompt], length[None])
        assert torch.equal(row, decode(model, alone, **DECODINGS[decoding])[0])
    assert len(together.unique()) > 5  # not one token over and over


@pytest.mark.parametrize("decoding", DECODINGS)
@FAMILIES
def test_cache_changes_nothing(kind, decoding):
    model = causal(kind)
    batch, options = model.source_batch(PROMPTS, LENGTHS + 9), DECODINGS[decoding]
    cached, uncached = (decode(model, batch, use_cache=on, **options) for on in (True, False))
    assert torch.equal(cached, uncached)


@pytest.mark.parametrize("use_cache", [True, False])
@FAMILIES
def test_generation_reads_what_training_read(kind, use_cache):
    """The logits of every generation step are those of teacher forcing on the output."""
    model = causal(kind)
    batch = model.source_batch(PROMPTS, LENGTHS + 9)
    torch.manual_seed(0)
    habits = {"do_sample": True, "max_new_tokens": 8, "min_new_tokens": 8}
    out = model.generate(
        **batch, **habits, use_cache=use_cache, output_logits=True, return_dict_in_generate=True
    )
    given = out.sequences[:, model.prompt_length(batch) :].tolist()
    with torch.no_grad():
        forced = model(**teacher_forced(model, LENGTHS + 9, given)).logits
    torch.testing.assert_close(torch.stack(out.logits, 1), forced, **CLOSE)


@pytest.mark.parametrize("use_cache", [True, False])
@FAMILIES
def test_steps_of_generation(kind, use_cache):
    """The prompt with its last token at step 1, then 2, 3, ... alone with a cache, all of them
    without; one length a beam.
    """
    model, calls = causal(kind), []
    model.length_signal.register_forward_pre_hook(
        lambda _, given: calls.append((given[0].tolist(), given[1].tolist()))
    )
    batch = model.source_batch(PROMPTS[:2], LENGTHS[:2])
    decode(model, batch, num_beams=2, use_cache=use_cache, max_new_tokens=4, min_new_tokens=4)
    prompt = [0] * 6 + [1]
    later = [[t] if use_cache else [*prompt, *range(2, t + 1)] for t in (2, 3, 4)]
    assert calls == [(step, [4, 4, 2, 2]) for step in [prompt, *later]]


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"controlled": False}], ids=str)
def test_forced_generation_is_exact(options):
    out = generate(causal(), PROMPTS, LENGTHS.numpy() + 9, forced=True, **options)
    assert out["generated_length"].tolist() == (LENGTHS + 9).tolist()
    assert not out["capped"].any()


def test_generated_tokens_are_new_ones():
    """`generate`: outputs of the stock method behind the prompt, in the order of the sources,
    whatever the batches.
    """
    model = causal("gpt2")
    one, two = (generate(model, PROMPTS, LENGTHS.numpy(), batch_size=n) for n in (4, 3))
    pd.testing.assert_frame_equal(one, two)
    for prompt, length, row in zip(PROMPTS, LENGTHS, one.itertuples()):
        habits = {"max_new_tokens": ALLOWANCE + int(length), "do_sample": False, "pad_token_id": 0}
        out = model.generate(torch.tensor([prompt]), target_length=length[None], **habits)
        new = out[0, len(prompt) :].tolist()
        assert row.tokens == (new[: new.index(EOS)] if EOS in new else new)


def test_generate_leaves_room_for_the_target():
    """Without a limit of the caller, outputs may run past the request, but not past the context."""
    model, l = causal(), torch.tensor([40, 3, 2, 5])
    forced = LogitsProcessorList([ForcedLength(l, EOS, prompt_length=7)])
    batch = model.source_batch(PROMPTS, l)
    out = model.generate(**batch, logits_processor=forced, do_sample=False, pad_token_id=0)
    assert output_lengths(out[:, 7:], EOS)[0].tolist() == l.tolist()
    assert model.most_new_tokens(40, source_width=7) == CONTEXT - 7


# ---- likelihood --------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, [9, 2, 30, 5]], ids=["not told", "told a length"])
@FAMILIES
def test_likelihood_is_the_sum_by_hand(kind, lengths):
    """From logits of single examples, whatever the batches: EOS as it is, other tokens given that
    the text goes on.
    """
    model, told = causal(kind), lengths or [None] * 4
    requests = None if lengths is None else np.array(lengths)
    nll = likelihoods(model, PROMPTS, RESPONSES, requests, batch_size=3)
    for i, (prompt, response, length) in enumerate(zip(PROMPTS, RESPONSES, told)):
        log_p = logits_alone(model, prompt, response, length).double().log_softmax(-1)
        goes_on = (1 - log_p[:, EOS].exp()).log()
        content = -sum(log_p[t, token] - goes_on[t] for t, token in enumerate(response[:-1]))
        assert nll["nll_content"][i] == pytest.approx(float(content), abs=1e-4)
        assert nll["nll_eos"][i] == pytest.approx(-log_p[-1, EOS].item(), abs=1e-5)
        assert nll["content_tokens"][i] == len(response) - 1


@FAMILIES
def test_loss_is_that_of_the_responses(kind):
    model, expected = causal(kind), 0.0
    loss, count = seq2seq_loss(model, model.pair_batch(PROMPTS, RESPONSES, LENGTHS))
    for prompt, response, length in zip(PROMPTS, RESPONSES, LENGTHS):
        log_p = logits_alone(model, prompt, response, length).log_softmax(-1)
        expected -= log_p[range(len(response)), response].sum().item()
    assert count == 14 and loss.item() == pytest.approx(expected, rel=1e-5)


# ---- LoRA --------------------------------------------------------------------------------------


@FAMILIES
def test_lora_at_its_start_is_the_base(kind):
    """Only LoRA, gate and signal are trained; every linear layer has LoRA but the unembedding."""
    model = causal(kind, "linear", gate="tanh")
    linear = (torch.nn.Linear, Conv1D)
    names = {name for name, module in model.named_modules() if isinstance(module, linear)}
    names -= {"lm_head"}
    assert len(names) == 2 * {"llama": 7, "gpt2": 4}[kind]
    with torch.no_grad():
        before = model(**teacher_forced(model)).logits
        add_lora(model)
        assert torch.equal(model.eval()(**teacher_forced(model)).logits, before)
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    own = {name for name in trained if "lora_" not in name}
    assert own == {"gate.g", "length_signal.vector"}
    assert {name.partition(".lora_")[0] for name in trained - own} == names
    assert len(trained) == 2 + 2 * len(names)
    seq2seq_loss(model, model.pair_batch(PROMPTS, RESPONSES, LENGTHS))[0].backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    moved = {name for name, gradient in gradients.items() if gradient.abs().max() > 0}
    assert moved == {name for name in trained if "lora_A" not in name}  # B is 0: A waits


@pytest.mark.parametrize("gate", GATES)
def test_training_moves_lora_gate_and_signal_only(gate):
    model = LengthControlled.from_config(configuration("llama"), "bucket", gate=gate)
    add_lora(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pairs = pd.DataFrame({"source_ids": PROMPTS, "target_ids": RESPONSES, "length": LENGTHS})
    options = {"updates": 3, "learning_rate": 0.01, "tokens_per_batch": 64, "seed": 0}
    fine_tune(model, pairs, **options)
    after = model.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    own = {name for name in moved if "lora_" not in name}
    assert own == {"length_signal.table"} | ({"gate.g"} if gate == "tanh" else set())
    assert any("lora_B" in name for name in moved)


# ---- checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize(("signal", "gate"), [("pre", "scaled"), ("linear", "tanh")])
@FAMILIES
def test_saved_is_loaded(kind, signal, gate, tmp_path):
    """Signal, gate and its value are remembered, also where embeddings have changed since."""
    model = causal(kind, signal, gate)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    model.save_pretrained(tmp_path)
    torch.manual_seed(9)
    loaded = LengthControlled.from_pretrained(str(tmp_path)).eval()
    for prompt, response in zip(PROMPTS, RESPONSES):
        a, b = (logits_alone(one, prompt, response, 9) for one in (model, loaded))
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("gate", GATES)
def test_base_checkpoint_gets_a_fresh_gate(gate, tmp_path):
    """The learned gate at 0, the fixed one by the checkpoint's own embeddings."""
    base = stock("llama", causal())
    base.save_pretrained(tmp_path)
    model = LengthControlled.from_pretrained(str(tmp_path), "pre", gate=gate)
    if gate == "tanh":
        assert model.gate["g"].item() == 0 and model.gate["g"].requires_grad
    else:
        norm = base.get_input_embeddings().weight.norm(dim=1).mean().item()
        expected = pytest.approx(SHARE * norm / math.sqrt(8), rel=1e-6)
        assert model.config.length_signal["scale"] == expected


# ---- prompts -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level tokenizer of up to 300 entries."""
    texts = ["the cat is not on the mat", "return the value of my_name", "1 2 3 10 200 is a number"]
    return train_tokenizer(texts * 3, 300)


def spelled(tokenizer, ids: list[int]) -> str:
    tokens = "".join(tokenizer.convert_ids_to_tokens(ids))
    return " ".join(tokens.replace("Ġ", " ").replace("Ċ", " ").split())


def test_prompts_and_responses(tokenizer):
    """The words around the source, a cut source, no EOS; a space and EOS around the target; the
    number asked for before the last colon.
    """
    sources = ["the cat", "the cat is not on the mat"]
    whole, cut = labelled_prompts(tokenizer, sources, ("Summary", "Description"), 3)
    (response,) = responses(tokenizer, ["the mat"])
    assert spelled(tokenizer, whole).replace(" :", ":") == "Summary: the cat Description:"
    source = tokenizer(" the cat", add_special_tokens=False)["input_ids"]
    assert len(cut) == len(whole) - len(source) + 3
    assert tokenizer.eos_token_id not in whole and response[-1] == tokenizer.eos_token_id
    assert spelled(tokenizer, response[:-1]) == "the mat"
    numbered = spelled(tokenizer, numbered_prompt(tokenizer, whole, 123)).replace(" ", "")
    assert numbered.endswith("Description(123tokens):")
    with pytest.raises(ValueError, match="must end with ':'"):
        numbered_prompt(tokenizer, whole[:-1], 3)


def test_number_in_prompt(tokenizer, tmp_path):
    """The model puts the number in, and is otherwise the stock model."""
    ours = LlamaForCausalLM(LlamaConfig(**COMMON | {"vocab_size": 300}, **LLAMA)).eval()
    ours.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = LengthControlled.from_pretrained(str(tmp_path), "number-in-prompt").eval()
    prompts = labelled_prompts(tokenizer, ["the cat", "my_name"], ("Summary", "Description"), 9)
    batch = model.source_batch(prompts, torch.tensor([5, 12]))
    for row, mask, prompt, l in zip(batch["input_ids"], batch["attention_mask"], prompts, (5, 12)):
        assert row[mask == 1].tolist() == numbered_prompt(tokenizer, prompt, l)
    plain = {name: batch[name] for name in ("input_ids", "attention_mask")}
    assert torch.equal(decode(model, batch), decode(ours, plain))


# ---- wrong input ends in one clear line --------------------------------------------------------


def test_refuses_wrong_requests():
    model = causal()
    batch = model.source_batch(PROMPTS)
    for length in (torch.tensor([4, 0, 4, 4]), torch.tensor([4, 4]), LENGTHS.float()):
        with pytest.raises(ValueError, match="target_length must be"):
            model.generate(**batch, target_length=length)
        with pytest.raises(ValueError, match="target_length must be"):
            model(**batch, target_length=length, prompt_width=7)
    with pytest.raises(ValueError, match=f"beyond the model's {CONTEXT - 7}"):
        model.generate(**batch, target_length=LENGTHS + CONTEXT - 7)
    with pytest.raises(ValueError, match="prompt_width beside it"):
        model(**batch, target_length=LENGTHS)
    with pytest.raises(ValueError, match="padded on the left"):
        mask = batch["attention_mask"].flip(1)
        model.generate(batch["input_ids"], attention_mask=mask, target_length=LENGTHS)
    with pytest.raises(ValueError, match="empty source"):
        model.generate(torch.zeros(4, 0, dtype=torch.long), target_length=LENGTHS)
    with pytest.raises(ValueError, match="not for the stock loss"):
        model(**model.pair_batch(PROMPTS, RESPONSES, LENGTHS))


def test_refuses_what_does_not_fit_the_context():
    """The longest prompt, the longest request and the allowance."""
    assert check_room(causal(), PROMPTS, CONTEXT - 7) is None
    with pytest.raises(ValueError, match=f"need {CONTEXT - 6}"):
        check_room(causal(), PROMPTS, CONTEXT - 6)


@pytest.mark.parametrize(
    ("config", "signal", "gate", "message"),
    [
        (BartConfig(), "number-in-prompt", None, "'number-in-prompt' is for decoder-only models"),
        (BartConfig(), "pre", "tanh", "gate comes with the signal of a decoder-only model"),
        (configuration("llama"), "pre", "sigmoid", "unknown gate 'sigmoid'.*tanh, scaled"),
        (configuration("llama"), "number-in-prompt", None, "needs a checkpoint's tokenizer"),
        (BloomConfig(hidden_size=16, n_layer=1, n_head=2), "pre", None, "Bloom.* does not take"),
    ],
)
def test_refuses_wrong_model_signal_or_gate(config, signal, gate, message):
    with pytest.raises(ValueError, match=message):
        LengthControlled.from_config(config, signal, gate=gate)


def test_refuses_counted_words(tmp_path):
    stock("llama", causal()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="count tokens, not words"):
        LengthControlled.from_pretrained(str(tmp_path), "pre", counted="words")
