# The two commands of the README, and what they are made of. `make` alone lists them.

PYTHON ?= python3
RUN := .venv/bin/python
BENCHMARKS := $(sort $(wildcard tools/benchmark_*.py))
LINT := ruff-check ruff-format
CHECKS := $(LINT) types tests

# Runs every check named in $(1), also after a failure, and fails if one of them did.
define run-all
	@failed=; for check in $(1); do \
		echo "--- $$check"; $(MAKE) --no-print-directory $$check || failed="$$failed $$check"; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed"; exit 1; fi; echo "Passed: $(1)"
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench $(CHECKS)

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

setup: ## Create .venv and install the tested versions; does nothing when they are there
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[0] < 3)' 2>/dev/null || { \
		echo "Set-up stopped: $(PYTHON) does not run or is no Python 3; install Python 3.10" \
		"to 3.13 or name one with PYTHON=/path/to/python." >&2; exit 1; }
	@PYTHON="$(PYTHON)" $(PYTHON) tools/setup_env.py

demo: setup ## Train, evaluate and draw a quantile-flow detector on a generated data set
	@$(RUN) tools/demo.py

test: setup ## Lint, types, all tests with coverage, and doctests
	$(call run-all,$(CHECKS))

lint: setup ## Lint and formatting only
	$(call run-all,$(LINT))

bench: setup ## Every benchmark script, tools/benchmark_*.py
	@failed=; for script in $(BENCHMARKS); do \
		echo "--- $$script"; $(RUN) $$script || failed="$$failed $$script"; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed"; exit 1; fi

# The single checks assume the environment, so that `make test` sets it up once.
ruff-check:
	@$(RUN) -m ruff check .

ruff-format:
	@$(RUN) -m ruff format --check .

# Types are judged as on Python 3.10 (see pyproject.toml), but with the stubs of current numpy: the
# last numpy for Python 3.10 takes an array's number of dimensions for part of its type.
types:
	@if $(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then $(RUN) -m mypy; \
		else echo "mypy is left to Python 3.11 and newer."; fi

# One thread per worker: two workers with a thread pool each only get in each other's way.
tests:
	@OMP_NUM_THREADS=1 MPLBACKEND=Agg $(RUN) -m pytest -q -n 2 --dist worksteal \
		--cov --cov-report=term --durations=20
