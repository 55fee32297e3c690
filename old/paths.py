"""Every path of the study, derived once from this file's place: nothing depends on the working directory."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "old" / "notebooks"
PARAMETERS = NOTEBOOKS / "params"  # <notebook>.<profile>.yaml
RESULTS = ROOT / "data" / "results"  # <profile>/<part>.csv and others (old.storage), committed
HEADS = ROOT / "data" / "heads"  # small trained heads, committed
MODELS = ROOT / "data" / "models"  # a small trained model, committed
FIGURES = ROOT / "figures"  # <profile>/*.png and tables, committed
CACHE = Path(os.environ.get("STUDY_CACHE", ROOT / ".cache")).expanduser()  # wheels, corpora, checkpoints; safe to delete
RUNS = CACHE / "runs"  # executed notebooks of every run but the stored one


def cache_size_mb() -> float:
    """Size of the cache folder in MB (10^6 bytes); shown by `make`."""
    return sum(f.stat().st_size for f in CACHE.rglob("*") if f.is_file()) / 1e6


if __name__ == "__main__":
    print(f"cache: {cache_size_mb():,.0f} MB (remove it with `make clean`)")
