"""The authors' released heads and model, converted: the numbers that their own code gives. Tiny stand-ins in the layout of their files."""

import json
from pathlib import Path

import pytest
import standins
import torch
from helpers import language_model
from safetensors.torch import save_file
from transformers import AutoTokenizer, BartForConditionalGeneration

from old.length import released as released_bart
from old.length.models import LengthControlled
from old.pretrained import save_whole, stored_tensors
from old.quality import released as released_heads
from old.quality.estimator import QualityEstimator
from old.quality.head import SigmoidHead
from old.quality.training import hidden_states

# ---- heads ---------------------------------------------------------------------------------------------------------------------------

FORMATS = {
    "model.safetensors": lambda weight, file: save_file({"weight": weight}, file),
    "pytorch_model.bin": lambda weight, file: torch.save({"weight": weight}, file),
    "head.pt": torch.save,
}


@pytest.fixture
def base(tmp_path) -> Path:
    """Folder of a tiny base model."""
    lm = language_model(tie_word_embeddings=False)
    save_whole(lm.model, lm.tokenizer, tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_converted_head_scores_as_the_authors_do(name, dtype, base, tmp_path):
    """sigmoid(h W^T) at every output token, whatever the file is called and the tensor's precision; bound to its base, by name and hash."""
    weight = torch.randn(300, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    FORMATS[name](weight, tmp_path / name)
    assert released_heads.main([str(tmp_path / name), str(base), str(tmp_path / "out.safetensors")]) == 0
    estimator = QualityEstimator.from_language_model(str(base), tmp_path / "out.safetensors")
    prompts, outputs = ["the cat is", "return"], ["not on the mat", "the value 10"]
    texts = estimator.lm.encode(prompts, outputs)
    gold = torch.tensor([token for text in texts for token in text.output])
    theirs = torch.sigmoid(hidden_states(estimator.lm, texts) @ weight.float().T).gather(1, gold[:, None])[:, 0]
    ours = torch.tensor(estimator.score(prompts, outputs)["sigmoid"].to_numpy())
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)  # heads are stored in half precision
    assert estimator.head.rank is None and not estimator.head.bias.any()
    with pytest.raises(ValueError, match="'tiny'"):
        SigmoidHead.load(tmp_path / "out.safetensors", language_model(seed=1).unembedding)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": torch.ones(300, 16), "b": torch.ones(1)}, "one tensor, but there are 2: a, b"),
        ({"weight": torch.ones(299, 16)}, r"the head is \(299, 16\), but the unembedding of tiny-llama is \(300, 16\)"),
        ({}, "there are 0: none"),
    ],
    ids=["two tensors", "another shape", "nothing"],
)
def test_refuses_other_files(tensors, message):
    with pytest.raises(ValueError, match=message):
        released_heads.head_of(tensors, language_model())


class Harmful:
    """Would create a file while it is read, if anything in it were executed."""

    def __init__(self, where: Path):
        self.where = where

    def __reduce__(self):
        return Path.touch, (self.where,)


def test_nothing_is_executed_on_reading(tmp_path, capsys):
    """A pickle that calls a function, a broken file and no file each end in one line."""
    torch.save({"weight": Harmful(tmp_path / "executed")}, tmp_path / "bad.pt")
    (tmp_path / "half.safetensors").write_bytes(b"half a download")
    for name in ("bad.pt", "half.safetensors"):
        with pytest.raises(ValueError, match=f"{name} is not a readable file of tensors"):
            stored_tensors(tmp_path / name)
        assert released_heads.main([str(tmp_path / name), "any/model", str(tmp_path / "out")]) == 1
    assert released_heads.main([str(tmp_path / "none.pt"), "any/model", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "executed").exists() and not (tmp_path / "out").exists()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("error: ") for line in lines)
    assert released_heads.main([]) == 2


# ---- PRE-BART ------------------------------------------------------------------------------------------------------------------------


def their_embeddings(model: BartForConditionalGeneration, decoder_input_ids: torch.Tensor, target_len: torch.Tensor) -> torch.Tensor:
    """What the authors' code hands to BART's decoder, which adds its positions once more: E + P + xi, cosines in even components."""
    width, steps = model.config.d_model, decoder_input_ids.shape[1]
    rates = [torch.cat([torch.linspace(0, 1, length), torch.ones(max(0, steps - length))])[:steps] for length in target_len.tolist()]
    phase = (width / 2) * torch.stack(rates)[:, :, None] * (2 * (torch.arange(width) // 2) / width)
    signal = torch.where(torch.arange(width) % 2 == 0, phase.cos(), phase.sin())
    decoder = model.get_decoder()
    positions = decoder.embed_positions.weight[decoder.embed_positions.offset :][:steps]
    return decoder.embed_tokens(decoder_input_ids) + positions + signal


@pytest.fixture(params=["model.safetensors", "pytorch_model.bin"])
def release(request, tmp_path) -> Path:
    """A folder as the authors' `save_pretrained` and the hub leave it: their own class, generation habits in the configuration."""
    folder = standins.bart_large(tmp_path / "released", dtype=torch.float32)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "prebart", "architectures": ["PreBartForConditionalGeneration"], "min_length": 56, "torch_dtype": "float32"}
    config["auto_map"] = {"AutoConfig": "configuration_prebart.PreBartConfig"}
    (folder / "config.json").write_text(json.dumps(config))
    if request.param != "model.safetensors":
        torch.save(stored_tensors(folder / "model.safetensors"), folder / request.param)
        (folder / "model.safetensors").unlink()
    return folder


@torch.no_grad()
def test_converted_model_is_theirs(release, tmp_path):
    """Teacher-forced logits equal those of stock BART with the authors' embeddings, before and after its end, to 1e-4."""
    stock = standins.bart_large(tmp_path / "stock", dtype=torch.float32)
    theirs = BartForConditionalGeneration.from_pretrained(stock).eval()
    assert released_bart.main([str(release), str(tmp_path / "prebart")]) == 0
    ours = LengthControlled.from_pretrained(str(tmp_path / "prebart")).eval()
    assert ours.config.length_signal["name"] == "pre-official" and ours.generation_config.num_beams in (None, 1)
    assert ours.generation_config.min_length in (None, 0) and ours.generation_config.forced_bos_token_id == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "prebart")
    source = tokenizer(["Return the number of items", "the list is not empty"], return_tensors="pt", padding=True)
    ids, target_length = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(0)), torch.tensor([7, 12])
    inputs = {"input_ids": source["input_ids"], "attention_mask": source["attention_mask"]}
    expected = theirs(**inputs, decoder_inputs_embeds=their_embeddings(theirs, ids, target_length)).logits
    found = ours(**inputs, decoder_input_ids=ids, target_length=target_length).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(expected, theirs(**inputs, decoder_input_ids=ids).logits, atol=1e-2)


def test_refuses_another_checkpoint(release, tmp_path, capsys):
    """Weights that are missing or that BART does not have, and a folder without weights: one line, and nothing is written."""
    (file,) = (f for f in release.iterdir() if f.name in ("model.safetensors", "pytorch_model.bin"))
    tensors, lost = stored_tensors(file), "model.decoder.layers.0.fc1.weight"
    file.unlink()
    tensors["x"] = tensors.pop(lost)
    save_file(tensors, release / "model.safetensors", metadata={"format": "pt"})
    assert released_bart.main([str(release), str(tmp_path / "out")]) == 1
    (release / "model.safetensors").unlink()
    assert released_bart.main([str(release), str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert f"no BART of this configuration: missing ['{lost}'], unexpected ['x']" in lines[0] and len(lines) == 2
    assert "no file named model.safetensors, or pytorch_model.bin" in lines[1] and not (tmp_path / "out").exists()
    assert released_bart.main([]) == 2
