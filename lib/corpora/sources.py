"""The table of benchmarks: where each comes from, under which terms, what is checked on loading.

Hub revisions were not seen on the hub itself. Each is copied from the source in the comment;
without such a source it is None.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Source:
    """One data set. `mirror`: only the local mirror has it, in the hub's layout."""

    kind: Literal["hub", "github", "mirror"]
    id: str  # namespace/name on the hub, owner/repository on GitHub
    config: str
    licence: str
    columns: tuple[str, ...]  # the ones loaded, in this order
    rows: dict[str, int | None]  # of the whole set, by split; None: not checked
    revision: str | None = None  # None: the newest
    mirror_rows: dict[str, int] = field(default_factory=dict)  # where the mirror holds a subset
    files: dict[str, str] = field(default_factory=dict)  # GitHub: path in the repository -> SHA-256


def _mlqe(pair: str, folder: str, sha: str, columns: tuple[str, ...]) -> Source:
    commit = "2a670a1140416cf80507b5a829659383c878feb8"
    files = {f"data/{folder}/test/{pair}-test.tar.gz": sha}
    rows = {"test20": 1000}
    return Source("github", "sheffieldnlp/mlqe-pe", pair, "CC0", columns, rows, commit, files=files)


_QA = ("id", "context", "question", "answers")
_DIRECT = ("pair", "source", "translation", "z_mean", "mean", "model_score", "tokens", "logprobs")
_EDITS = ("pair", "source", "translation", "post_edit", "hter", "tags")

BENCHMARKS = {
    "paws-x-en": Source(
        "hub",
        "google-research-datasets/paws-x",
        "en",
        "free use (Google)",
        ("id", "sentence1", "sentence2", "label"),
        {"train": 49_401, "validation": 2000, "test": 2000},
    ),
    "gsm8k": Source(
        "hub",
        "openai/gsm8k",
        "main",
        "MIT",
        ("question", "answer"),
        {"train": 7473, "test": 1319},
        "cc7b047b6e5bb11b4f1af84efc572db110a51b3c",  # the GSM8K task of inspect_evals
    ),
    "cnn-dailymail": Source(
        "hub",
        "abisee/cnn_dailymail",
        "3.0.0",
        "research use",
        ("article", "highlights", "id"),
        {"train": 287_113, "validation": 13_368, "test": 11_490},
        mirror_rows={"validation": 500, "test": 500},
    ),
    "xsum": Source(
        "hub",
        "EdinburghNLP/xsum",
        "default",
        "research use",
        ("document", "summary", "id"),
        {"train": 204_045, "validation": 11_332, "test": 11_334},
        mirror_rows={"test": 1000},
    ),
    # SQuAD's dev set, the sentence with the answer instead of the paragraph; overlaps with XQuAD
    "squad-sentences": Source(
        "mirror", "rajpurkar/squad", "sentences", "CC BY-SA 4.0", _QA, {"train": 9718}
    ),
    "xquad-en": Source(
        "hub",
        "google/xquad",
        "xquad.en",
        "CC BY-SA 4.0",
        _QA,
        {"validation": 1190},
        "51adfef1c1287aab1d2d91b5bead9bcfb9c68583",  # MTEB's task XQuADRetrieval
    ),
    "multi30k-en-de": Source(
        "hub",
        "bentrevett/multi30k",
        "default",
        "non-commercial research",
        ("en", "de"),
        {"train": 29_000, "validation": 1014, "test": 1000},
        "37e118600232bb5298ca011a8a7e7a44e863c36a",  # the hub's list of files at this commit
    ),
    "cola": Source(
        "hub",
        "nyu-mll/glue",
        "cola",
        "fair use",
        ("sentence", "label", "idx"),
        {"train": 8551, "validation": 1043, "test": 1063},
        mirror_rows={"validation": 527},  # the in-domain half
    ),
    "mlqe-pe-en-de": _mlqe(
        "en-de",
        "direct-assessments",
        "8fb22a42281fe334c247627e8bce76e3f842f55ba5b214efad26a890e6cfeef9",
        _DIRECT,
    ),
    "mlqe-pe-ro-en": _mlqe(
        "ro-en",
        "direct-assessments",
        "da29ec0efb65e5c99b26b0c67c12544842d286b6fd5467d9c3dec25a3c07e6d9",
        _DIRECT,
    ),
    "mlqe-pe-ru-en": _mlqe(
        "ru-en",
        "direct-assessments",
        "be1d47bb44c0f8beaf7efc856ba0794b16c605ae5901b00a2376476f28405037",
        _DIRECT,
    ),
    "mlqe-pe-tags-en-de": _mlqe(
        "en-de",
        "post-editing",
        "78d136444c9e50c189c35dc898c4b9580ccd057121bc3349cb3df5f56a943457",
        _EDITS,
    ),
    "mlqe-pe-tags-ro-en": _mlqe(
        "ro-en",
        "post-editing",
        "01ec2fe1c832c49f8bb7fb6e2710afc6353913f35d129b43d73eabf517078126",
        _EDITS,
    ),
    "hjqe-en-de": Source(
        "github",
        "ZhenYangIACAS/HJQE",
        "en-de",
        "none stated",
        ("pair", "source", "translation", "tags"),
        {"dev": 1000},
        "af9fa5d1c2b2b68737d0177a11472898d8ebd512",
        files={
            "en-de/dev/dev.src": "896f605ac54c0e9128b65904fa56e1d4c01711214450008fbddc4e4730314839",
            "en-de/dev/dev.mt": "c758eefef229347f5778f5974be960bcd39b9e2d220d43f0af4ee1d4450a388b",
            "en-de/dev/dev.tags": "2c766c8b103f43a54600572c53fc7dd79edc8cbb315ec23ff0b0d8d9f9ec2105",
        },
    ),
}
