"""The table of benchmark data sets: where each comes from, under which terms, and what is checked when it is loaded (`benchmarks.py`)."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Benchmark:
    """One data set. `mirror` is a set that only the local mirror has, in the hub layout; revision None = unpinned."""

    kind: Literal["hub", "github", "mirror"]
    id: str  # namespace/name on the hub, owner/repository on GitHub
    config: str
    revision: str | None
    licence: str
    columns: tuple[str, ...]  # the ones loaded, in this order
    rows: dict[str, int | None]  # rows of the whole set by split; None = never seen by us, so not checked
    mirror_rows: dict[str, int] = field(default_factory=dict)  # where the mirror holds a subset
    files: dict[str, str] = field(default_factory=dict)  # GitHub only: path in the repository -> SHA-256


def _mlqe(pair: str, folder: str, sha: str, columns: tuple[str, ...]) -> Benchmark:
    commit, files = "2a670a1140416cf80507b5a829659383c878feb8", {f"data/{folder}/test/{pair}-test.tar.gz": sha}
    return Benchmark("github", "sheffieldnlp/mlqe-pe", pair, commit, "CC0", columns, {"test20": 1000}, files=files)


_QA = ("id", "context", "question", "answers")
_WMT = ("lp", "src", "mt", "ref", "score", "annotators", "domain", "year")
_DIRECT = ("pair", "source", "translation", "z_mean", "mean", "model_score", "tokens", "logprobs")
_EDITS = ("pair", "source", "translation", "post_edit", "hter", "tags")
_APACHE = "Apache-2.0"
_MIXED = "several, see its card"

# Hub revisions were not seen on the hub itself. Each is copied from the source in the comment; without such a source it is None.
BENCHMARKS = {
    "paws-x-en": Benchmark(
        "hub",
        "google-research-datasets/paws-x",
        "en",
        None,
        "free use (Google)",
        ("id", "sentence1", "sentence2", "label"),
        {"train": 49_401, "validation": 2000, "test": 2000},
    ),
    "gsm8k": Benchmark(  # the GSM8K task of inspect_evals
        "hub",
        "openai/gsm8k",
        "main",
        "cc7b047b6e5bb11b4f1af84efc572db110a51b3c",
        "MIT",
        ("question", "answer"),
        {"train": 7473, "test": 1319},
    ),
    "cnn-dailymail": Benchmark(
        "hub",
        "abisee/cnn_dailymail",
        "3.0.0",
        None,
        "research use",
        ("article", "highlights", "id"),
        {"train": 287_113, "validation": 13_368, "test": 11_490},
        {"validation": 500, "test": 500},
    ),
    "xsum": Benchmark(
        "hub",
        "EdinburghNLP/xsum",
        "default",
        None,
        "research use",
        ("document", "summary", "id"),
        {"train": 204_045, "validation": 11_332, "test": 11_334},
        {"test": 1000},
    ),
    "squad": Benchmark(
        "hub",
        "rajpurkar/squad",
        "plain_text",
        None,
        "CC BY-SA 4.0",
        _QA,
        {"train": 87_599, "validation": 10_570},
    ),
    # The sentence with the answer instead of the paragraph, from SQuAD's dev set: overlaps with XQuAD, see `without_overlap`.
    "squad-sentences": Benchmark("mirror", "rajpurkar/squad", "sentences", None, "CC BY-SA 4.0", _QA, {"train": 9718}),
    "xquad-en": Benchmark(  # MTEB's task XQuADRetrieval
        "hub",
        "google/xquad",
        "xquad.en",
        "51adfef1c1287aab1d2d91b5bead9bcfb9c68583",
        "CC BY-SA 4.0",
        _QA,
        {"validation": 1190},
    ),
    "multi30k-en-de": Benchmark(  # the hub's own list of the files at this commit; only its README changed later
        "hub",
        "bentrevett/multi30k",
        "default",
        "37e118600232bb5298ca011a8a7e7a44e863c36a",
        "non-commercial research",
        ("en", "de"),
        {"train": 29_000, "validation": 1014, "test": 1000},
    ),
    "cola": Benchmark(
        "hub",
        "nyu-mll/glue",
        "cola",
        None,
        "fair use",
        ("sentence", "label", "idx"),
        {"train": 8551, "validation": 1043, "test": 1063},
        {"validation": 527},  # the in-domain half
    ),
    "tulu-3": Benchmark("hub", "allenai/tulu-3-sft-olmo-2-mixture-0225", "default", None, _MIXED, ("messages",), {"train": None}),
    "towerblocks": Benchmark(  # the hub's own list of the files at this commit
        "hub",
        "Unbabel/TowerBlocks-v0.2",
        "default",
        "0c00a3ae8ecaf841e38e3c87968d62d28f1a3a12",
        _MIXED,
        ("conversations", "lang", "split", "dataset", "task"),
        {"train": 637_563},
    ),
    "wmt24pp-en-de": Benchmark(
        "hub",
        "google/wmt24pp",
        "en-de_DE",
        None,
        _APACHE,
        ("domain", "document_id", "segment_id", "is_bad_source", "source", "target", "original_target"),
        {"train": None},
    ),
    "wmt-da": Benchmark("hub", "RicardoRei/wmt-da-human-evaluation", "default", None, _APACHE, _WMT, {"train": None}),
    "wmt-mqm": Benchmark("hub", "RicardoRei/wmt-mqm-human-evaluation", "default", None, _APACHE, _WMT, {"train": None}),
    "wmt-sqm": Benchmark("hub", "RicardoRei/wmt-sqm-human-evaluation", "default", None, _APACHE, _WMT, {"train": None}),
    "bio-mqm": Benchmark(
        "hub",
        "zouharvi/bio-mqm-dataset",
        "default",
        None,
        _APACHE,
        ("src", "tgt", "ref", "system", "lang_src", "lang_tgt", "errors_tgt"),
        {"validation": None, "test": None},
    ),
    "truthfulqa": Benchmark(
        "hub",
        "domenicrosati/TruthfulQA",
        "default",
        None,
        _APACHE,
        ("Type", "Category", "Question", "Best Answer", "Correct Answers", "Incorrect Answers"),
        {"train": 817},
    ),
    "mlqe-pe-en-de": _mlqe("en-de", "direct-assessments", "8fb22a42281fe334c247627e8bce76e3f842f55ba5b214efad26a890e6cfeef9", _DIRECT),
    "mlqe-pe-ro-en": _mlqe("ro-en", "direct-assessments", "da29ec0efb65e5c99b26b0c67c12544842d286b6fd5467d9c3dec25a3c07e6d9", _DIRECT),
    "mlqe-pe-ru-en": _mlqe("ru-en", "direct-assessments", "be1d47bb44c0f8beaf7efc856ba0794b16c605ae5901b00a2376476f28405037", _DIRECT),
    "mlqe-pe-tags-en-de": _mlqe("en-de", "post-editing", "78d136444c9e50c189c35dc898c4b9580ccd057121bc3349cb3df5f56a943457", _EDITS),
    "mlqe-pe-tags-ro-en": _mlqe("ro-en", "post-editing", "01ec2fe1c832c49f8bb7fb6e2710afc6353913f35d129b43d73eabf517078126", _EDITS),
    "hjqe-en-de": Benchmark(
        "github",
        "ZhenYangIACAS/HJQE",
        "en-de",
        "af9fa5d1c2b2b68737d0177a11472898d8ebd512",
        "none stated",
        ("pair", "source", "translation", "tags"),
        {"dev": 1000},
        files={
            "en-de/dev/dev.src": "896f605ac54c0e9128b65904fa56e1d4c01711214450008fbddc4e4730314839",
            "en-de/dev/dev.mt": "c758eefef229347f5778f5974be960bcd39b9e2d220d43f0af4ee1d4450a388b",
            "en-de/dev/dev.tags": "2c766c8b103f43a54600572c53fc7dd79edc8cbb315ec23ff0b0d8d9f9ec2105",
        },
    ),
}
