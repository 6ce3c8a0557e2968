# Everything a developer, a newcomer and CI run. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := .venv
PYTHON := $(VENV)/bin/python
WORKSPACE ?= workspace
# Paths or options for pytest: make test ARGS="tests/recall -k popular"
ARGS ?=

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

.PHONY: setup
setup: $(VENV)/.ready ## The virtual environment in .venv: torch, the locked packages, feedloop itself

$(VENV)/.ready: pyproject.toml requirements.lock scripts/setup.sh
	@scripts/setup.sh

.PHONY: demo
demo: setup ## The whole loop on a small dataset, then the feed on loopback (DEMO_SERVE=0: stop before; DATA=path: HetRec Last.fm)
	@$(VENV)/bin/feedloop demo --workspace "$(WORKSPACE)" $(if $(DATA),--hetrec-lastfm "$(DATA)") $(if $(PORT),--port "$(PORT)") $(if $(filter 0,$(DEMO_SERVE)),--no-serve --json)

.PHONY: doctor
doctor: setup ## What this machine has and lacks
	$(VENV)/bin/feedloop doctor

.PHONY: browser
browser: ## A Chromium for the browser tests, from the system's packages, when none is there
	@scripts/browser.sh

.PHONY: lint
lint: setup ## ruff, mypy, and the import rules between the rooms
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

.PHONY: test
test: setup browser lint ## Lint and all tests that are not marked slow
	$(PYTHON) -m pytest -m "not slow" $(ARGS)

.PHONY: test-slow
test-slow: setup browser ## The tests that are marked slow
	$(PYTHON) -m pytest -m slow $(ARGS)

.PHONY: airflow-test
airflow-test: setup ## The schedules in an Airflow of their own (.venv-airflow): parsed, and the daily one run for real
	@scripts/airflow.sh setup
	@scripts/airflow.sh test $(ARGS)

.PHONY: bench
bench: setup ## Every benchmark, then the table (BENCH_ARGS=--quick: each within a minute)
	@scripts/bench.sh $(BENCH_ARGS)

.PHONY: lock
lock: setup ## Write both lock files anew from pyproject.toml (ARGS=--upgrade: newest releases)
	scripts/lock.sh $(ARGS)
	scripts/airflow.sh lock $(ARGS)

.PHONY: clean
clean: ## Remove both environments, caches and build outputs; workspaces stay
	rm -rf .venv .venv-airflow .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
