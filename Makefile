# make demo: see it work.  make test: check everything.  Both set up what they need.
SHELL := /bin/bash
PYTHON ?= $(firstword $(shell command -v python3.13 python3.12 python3.11 python3 2>/dev/null) python3)
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := node,client,db,controller,web,parquet,plots,dev

.PHONY: demo test check setup packages clean

demo:
	@start=$$(date +%s); $(MAKE) --no-print-directory setup && \
	$(BIN)/python -m lab demo --setup-seconds $$(($$(date +%s) - start))

test: setup check
	$(BIN)/python -m pytest -q tests -m lab

# Everything that needs no cluster; two minutes at most.
check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests -m "not lab"

setup: packages $(VENV)/ready

packages:
	@packaging/install-packages

$(VENV)/ready: setup.cfg pyproject.toml | packages
	@packaging/make-venv $(VENV) "$(EXTRAS)"

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
