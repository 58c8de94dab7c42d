# A fresh clone needs only `make test`: it builds .venv once, then checks everything.
PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready

.PHONY: help setup test lint types pytest format bench look report
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## build .venv, if it is not up to date

test: lint ## everything that must be green
	@$(MAKE) --no-print-directory -j2 types pytest

lint: $(READY) ## ruff, and the import rules of the house
	@echo "── ruff check"
	@$(BIN)/ruff check
	@echo "── ruff format --check"
	@$(BIN)/ruff format --check
	@echo "── lint-imports"
	@$(BIN)/lint-imports --no-logo

types: $(READY) ## basedpyright
	@echo "── basedpyright"
	@$(BIN)/basedpyright

pytest: $(READY) ## tests and doctests; ARGS="-k mask" to choose
	@echo "── pytest"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --durations=8 $(ARGS)  # a core each

format: $(READY) ## rewrite the code as ruff likes it
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(READY) ## time attend against its peers; ARGS go to the script
	@$(BIN)/python benchmarks/attend.py $(ARGS)

look: $(READY) ## open the explorer: every head of a small model, zoomable
	@$(BIN)/multihead look $(ARGS)

report: $(READY) ## the same with ARGS='"Your text" -o folder'; or ARGS=--help
	@$(BIN)/multihead report -o look.report $(ARGS)

# The stamp goes first and comes back last, and without it we start from an empty .venv:
# an install that was cut short can leave packages that look whole and are not.
$(READY): pyproject.toml constraints.txt
	@echo "── set up .venv (a minute or a few, once)"
	@test -e $@ || $(PYTHON) -m venv --clear .venv
	@rm -f $@
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
