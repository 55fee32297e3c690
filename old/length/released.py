"""The authors' released PRE-BART as a length-controlled model of this study.

    hf download Ivanhoe9/prebart-large-cnn --local-dir released
    python -m old.length.released released prebart

writes a folder that `LengthControlled.from_pretrained("prebart")` loads, with the signal `pre-official`.

Known from the authors' code (Ivanbtz9/ProgressRatioEmbeddings, src/BART/PRE_BART): the weights are those of a BartForConditionalGeneration
under its own names, the signal has none; the decoder's positions are added twice, E + 2 P + xi, by the model and by BART itself. Here they
are added once, so the stored table P is doubled: the same sum, exactly. l counts all tokens of the target, <s> and </s> too, as here.
Assumed, as the checkpoint could not be seen: the default frequency M = d / 2, which no file records; and no prefix of the source (the
example of the authors' data module has "summarize: ").
Not taken over: noise at inference, and no signal at the first generated token - faults of the code around the weights (see `faults` in
old.length.experiment); at l = 1 the authors' ratio is 0, here 1.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, BartConfig

from old.length.models import LengthControlled, plain_generation
from old.pretrained import save_whole


def controlled_model(folder: Path):
    """The model in a folder as downloaded, in float32. OSError or ValueError where the folder holds something else."""
    config = BartConfig.from_pretrained(folder)  # theirs is BART's under another name
    config.__dict__.pop("auto_map", None)  # to their own classes, which nothing here executes
    model, found = LengthControlled.from_pretrained(str(folder), "pre-official", config=config, output_loading_info=True)
    missing = set(found["missing_keys"]) - {"final_logits_bias"}
    if missing or found["unexpected_keys"]:
        raise ValueError(f"no BART of this configuration: missing {sorted(missing)}, unexpected {sorted(found['unexpected_keys'])}")
    with torch.no_grad():
        model.get_decoder().embed_positions.weight.mul_(2)
    model.generation_config = plain_generation(model.generation_config)
    return model.eval()


def main(arguments: list[str]) -> int:
    """Command line: folder of the released checkpoint, folder to write. Returns the exit status."""
    if len(arguments) != 2:
        print("usage: python -m old.length.released <folder> <output folder>", file=sys.stderr)
        return 2
    source, output = map(Path, arguments)
    try:
        model = controlled_model(source)
        save_whole(model, AutoTokenizer.from_pretrained(source, config=model.config), output)
    except (OSError, ValueError) as error:
        print(f"error: {source.name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
