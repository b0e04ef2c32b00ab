# `make demo` runs a demonstration, and `make test` runs all checks. Both install what they need.
SHELL := /bin/bash
PYTHON ?= $(firstword $(shell command -v python3.13 python3.12 python3.11 python3 2>/dev/null) python3)
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := node,client,db,controller,web,report,learn,colocation,dev

.PHONY: demo test test-long test-versions check soak fuzz man completion rpm setup compiled packages browser screenshot clean

demo:
	@start=$$(date +%s); $(MAKE) --no-print-directory setup && \
	$(BIN)/python -m lab demo --setup-seconds $$(($$(date +%s) - start))

# The lab tests are split between two labs, because they mostly wait. LABS=1 uses one lab, on the machine itself.
LABS ?= 2
test: setup
	@start=$$(date +%s); $(MAKE) --no-print-directory check && \
	echo "The checks without a cluster took $$(($$(date +%s) - start)) s; now the lab tests."
	@LABS=$(LABS) tests/lab/side-by-side tests/lab -m "lab and not long"

# Run the lab tests that are too long for `make test`: Slurm's own limits, slurm-gpuctld, packages, hooks, upgrades.
test-long: setup
	@packaging/rpm/install-tools
	@$(BIN)/python -m pytest -q tests --ignore=tests/lab -m long; failed=$$?; \
	LABS=$(LABS) tests/lab/side-by-side tests/lab -m long || failed=1; exit $$failed

# Run the lab tests on other versions of Slurm in parallel, in chroots made by debootstrap. See tests/versions/try.
VERSIONS ?= 22.05 24.11 26.05
test-versions:
	@packaging/install-packages debootstrap
	@$(MAKE) --no-print-directory -k -j 3 --output-sync=target $(VERSIONS:%=test-versions-%)

test-versions-%:
	@tests/versions/try $*

# Run all checks without a cluster. mypy runs in parallel. Slow files run first (tests/conftest.py), and xdist must keep
# this order.
check: compiled browser $(VENV)/torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vulture
	@types=$$(mktemp); $(BIN)/mypy >$$types 2>&1 & mypy=$$!; \
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests -m "not lab"; failed=$$?; \
	wait $$mypy || failed=1; echo "mypy: $$(cat $$types)"; rm $$types; exit $$failed

# Run longer versions of tests in `make check`: a node without its database for a day, more histories of a node, and
# the mixed load of tests/node/test_mixed_load.py with other seeds and more jobs. They take ten and a half minutes.
SOAK_SEEDS ?= 1 2 3 4 5 6 7 8
soak: $(VENV)/ready
	SLURM_GPU_TEST_HOURS=24 SLURM_GPU_TEST_STORIES=300 $(BIN)/python -m pytest -q \
	    tests/node/test_outages_of_days.py tests/node/test_any_story.py
	SLURM_GPU_TEST_FIRST_SCHEMA=0002 $(BIN)/python -m pytest -q tests/upgrade/test_database.py -k killed_at_each
	@for seed in $(SOAK_SEEDS); do \
	    echo "seed $$seed"; \
	    SLURM_GPU_TEST_SEED=$$seed SLURM_GPU_TEST_RUNS=400 \
	        $(BIN)/python -m pytest -q -s tests/node/test_mixed_load.py || exit 1; \
	done

# Test job_submit.lua against the independent model, its own advice and hostile job descriptions, for a quarter of an
# hour. Then run all other property tests with forty times as many examples as `make check`.
FUZZ ?= 50000
EXAMPLES ?= 1000
FUZZ_SEED := $(or $(FUZZ_SEED),$(shell date +%s))
fuzz: $(VENV)/ready
	@echo "seed $(FUZZ_SEED); \`make fuzz FUZZ=$(FUZZ) FUZZ_SEED=$(FUZZ_SEED)\` repeats this run"
	SLURM_GPU_FUZZ=$(FUZZ) SLURM_GPU_FUZZ_SEED=$(FUZZ_SEED) $(BIN)/python -m pytest -q -rP -n 2 \
	    $(addprefix tests/policy/test_,agreement.py failures.py messages.py advice.py decision_cache.py lending.py)
	SLURM_GPU_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q -n 2 --dist loadfile tests -m "hypothesis and not lab"

# Build the packages for the RHEL 9 family in dist/, from the last commit, for x86_64 and aarch64 (packaging/rpm/build).
rpm:
	@packaging/rpm/install-tools
	@packaging/rpm/build dist

# Build the manual pages and the shell completion that the packages contain.
man completion: $(VENV)/ready
	PYTHONPATH=. $(BIN)/python packaging/$@ build/$@

# Make the pictures of the monitoring page and of a report for README.md and docs, in a lab (root, eight minutes).
screenshot: setup browser
	$(BIN)/python bench/screenshot.py docs/images

# Build the documentation as a site in build/site; a broken link is an error. Only this target installs mkdocs.
docs: $(VENV)/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# Check the dependencies in the packages for known vulnerabilities. OFFLINE=ok only warns if the databases cannot be
# reached.
audit: $(VENV)/audit
	@$(BIN)/python packaging/audit || { status=$$?; [ "$(OFFLINE)" = ok ] && [ $$status = 3 ]; }

$(VENV)/docs $(VENV)/audit: $(VENV)/%: setup.cfg | $(VENV)/ready
	@packaging/make-venv $(VENV) $*
	@touch $@

# Install PyTorch for tests of training. The build without CUDA is preferred, because it is a tenth of the size.
$(VENV)/torch: setup.cfg | $(VENV)/ready
	@packaging/install-torch $(VENV)
	@touch $@

setup: packages compiled

# Compile once. Otherwise, thousands of processes of the tests and the lab would compile their imports: most users of
# the lab cannot write here, and PYTHONDONTWRITEBYTECODE prevents caching.
unexport PYTHONDONTWRITEBYTECODE
compiled: $(VENV)/ready
	@$(BIN)/python -m compileall -q -j 0 slurm_gpu lab

packages:
	@packaging/install-packages

# Install Chromium and Firefox for tests of pages in a browser.
browser:
	@packaging/install-packages browser || echo "Without Chromium and Firefox, tests of pages in a browser are skipped."

$(VENV)/ready: setup.cfg pyproject.toml | packages
	@packaging/make-venv $(VENV) "$(EXTRAS)"

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
