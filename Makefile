# Two commands do all the set-up: `make serve` (speak to it) and `make test`.
#   make serve DEVICE=cuda   on a machine with an NVIDIA GPU
#   make help                lists the rest

PYTHON ?= python3
DEVICE ?= cpu
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help setup serve test lint format bench docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# The stamps make a second call fast: set-up runs again only when what it depends on has changed.
$(VENV)/.run-$(DEVICE): requirements/run.txt pyproject.toml scripts/setup.sh
	@scripts/setup.sh run $(DEVICE) $(PYTHON)
	@touch $@

$(VENV)/.dev-$(DEVICE): $(VENV)/.run-$(DEVICE) requirements/dev.txt requirements/docs.txt
	@scripts/setup.sh dev $(DEVICE) $(PYTHON)
	@touch $@

$(VENV)/.docs-$(DEVICE): $(VENV)/.run-$(DEVICE) requirements/docs.txt
	@scripts/setup.sh docs $(DEVICE) $(PYTHON)
	@touch $@

setup: $(VENV)/.dev-$(DEVICE) ## set everything up and start nothing; the other targets do it by themselves

serve: $(VENV)/.run-$(DEVICE) ## set everything up, then serve: open the page it names, speak, read
	@$(BIN)/silica serve --device $(DEVICE) $(ARGS)

test: $(VENV)/.dev-$(DEVICE) ## set everything up, then run every check: format, types, tests, page
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q $(ARGS)

lint: $(VENV)/.dev-$(DEVICE) ## format, style and types only
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(VENV)/.dev-$(DEVICE) ## put every file into the house's format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(VENV)/.dev-$(DEVICE) ## streams a core, and the backends beside eager PyTorch; benchmarks has more, on data of yours
	@$(BIN)/silica bench --device $(DEVICE) $(ARGS)
	@$(BIN)/python -m benchmarks.acoustic

docs: $(VENV)/.docs-$(DEVICE) ## write the generated pages of docs/, then build the documentation into build/docs
	@$(BIN)/python scripts/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/docs/index.html, or serve it with: $(BIN)/mkdocs serve"

clean: ## remove the environment and every cache
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
