# `make help` lists the targets. Everything runs inside .venv, which `make setup` builds.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := asyncgrpo tests recipes
# On two cores, two busy processes with one thread each are up to ten times as fast as with two.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help setup demo demo-lora real-model test test-fast check lint type contracts format docs lock bench

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup:  ## make .venv with asyncgrpo and a vLLM that runs without a GPU (3 to 7 minutes)
	@PYTHON=$(PYTHON) bash .ci/setup
	@[ "$(MAKECMDGOALS)" != setup ] || echo "setup: ready; now: source .venv/bin/activate, or make demo"

demo: setup  ## train a 0.8 M model to add, with the real vLLM, on two cores
	$(BIN)/asyncgrpo train recipes/demo.yaml run.dir=runs/demo-$$(date +%m%d-%H%M%S)

demo-lora: setup  ## the same with LoRA: its updates do not interrupt generation
	$(BIN)/asyncgrpo train recipes/demo-lora.yaml run.dir=runs/demo-lora-$$(date +%m%d-%H%M%S)

real-model: setup  ## fetch SmolLM2-135M-Instruct and warm it up for recipes/smollm2-cpu.yaml
	$(BIN)/python -m recipes.smollm2.make_model

test: setup  ## every test, those with the real vLLM included
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-fast: setup  ## the tests that start no vLLM
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not vllm and not gpu"

check: lint type contracts test  ## what CI runs

lint: setup  ## ruff: rules and format
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

type: setup  ## pyright: strict over asyncgrpo, standard over tests and recipes
	$(BIN)/pyright
	$(BIN)/pyright -p tests/pyrightconfig.json

contracts: setup  ## the import layers, and who may import torch
	$(BIN)/lint-imports

format: setup  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

docs: setup  ## write the generated reference pages again
	$(BIN)/python -m asyncgrpo.config.reference > docs/configuration.md
	$(BIN)/python -m asyncgrpo.metrics.reference > docs/metrics.md
	$(BIN)/python -m asyncgrpo.command_reference > docs/commands.md

lock:  ## write requirements.lock again, from the newest versions that pyproject.toml allows
	@PYTHON=$(PYTHON) bash .ci/lock

bench: setup  ## every benchmark; a table, and bench/results.json
	$(BIN)/python -m tests.bench
