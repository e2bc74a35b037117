# `make` or `make help` lists the targets. Variables are given before or after the target:
#     PREFILL=2 DECODE=2 PORT=9000 make serve
#     MODEL=/path/or/hub-id make serve

SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin

# Variables become flags only where they are set, so that baton.yaml and BATON_… count otherwise.
FLAGS := $(if $(MODEL),--model "$(MODEL)") $(if $(PREFILL),--prefill $(PREFILL)) \
         $(if $(DECODE),--decode $(DECODE)) $(if $(PORT),--port $(PORT)) $(ARGS)

# Tests of real engines run in one worker of pytest-xdist, all others beside them in another; WORKERS=0: one after the other, as with ARGS.
WORKERS ?= $(if $(ARGS),0,2)
SIDE_BY_SIDE := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup serve check test test-all test-matrix fidelity api-parity fuzz fuzz-http api-fuzz explore chaos bench bench-proxy bench-quick config-check docs newcomer dist clean test-gpu mutants

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nVariables: MODEL (path or hub id), PREFILL and DECODE (number of nodes), PORT, ARGS (further flags),\n  WORKERS (of tests), SECONDS and SEED (chaos)\n'

setup: ## install everything into .venv; again: no work
	@VENV=$(VENV) deploy/setup.sh

serve: setup ## serve a model over prefill and decode nodes on this machine
	@exec $(BIN)/baton serve $(FLAGS)

check: setup ## formatting, lint rules, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict baton benchmarks tests

test: setup ## all tests: unit, integration, end to end; they need a Chromium, which is installed where that is allowed
	@deploy/test_setup.sh || echo "make test: without a Chromium the tests of HTML pages will fail" >&2
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

fidelity: setup ## compare with one plain vLLM server, 200 prompts per cell
	$(BIN)/python -m tests.e2e.fidelity --prompts 200 $(ARGS)

test-all: setup ## make test, and what takes long: every shape and model; before a release
	@deploy/test_setup.sh || echo "make test-all: without a Chromium the tests of HTML pages will fail" >&2
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "" $(ARGS)

test-gpu: $(if $(PYTHON),,setup) ## what only a CUDA device can show, ten scripts, one JSON; PYTHON=python3 uses that instead of .venv
	@$(or $(PYTHON),$(BIN)/python) -m tests.gpu $(ARGS)

test-matrix: setup ## prefill and decode nodes of every shape and models of every kind against one plain server, token by token; 25 minutes
	$(BIN)/python -m pytest tests/matrix tests/e2e -m matrix $(ARGS)

api-parity: setup ## compare the API with one plain vLLM server, field by field
	$(BIN)/python -m pytest tests/e2e/test_parity.py -q $(ARGS)

fuzz: setup ## 1,000,000 mutated frames into the control channel, beside honest transfers
	$(BIN)/python -m tests.fuzz.control $(ARGS)

fuzz-http: setup ## 20,000 malformed connections into the proxy, in front of mock engines
	$(BIN)/python -m tests.fuzz.raw_http $(ARGS)

api-fuzz: setup ## 2,000 requests generated from the API's schemas (schemathesis, in ~/.cache/baton/clients-…)
	$(BIN)/python -m tests.fuzz.api_schema $(ARGS)

chaos: setup ## leaving clients, kills, stalls, cut links; SECONDS=600 SEED=1
	$(BIN)/python -m tests.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

explore: setup ## the hand-off's state machines in every interleaving; ARGS="--suite quick" for a minute of it
	$(BIN)/python -m tests.explorer $(ARGS)

mutants: setup ## small faults put into the product, one at a time: the tests must notice each; ARGS=consumer.py for some, ARGS="--draw 40 --seed 7" for random ones
	$(BIN)/python -m tests.mutants $(ARGS)

bench: setup ## Baton beside two plain servers, MooncakeConnector and NixlConnector; root, 20 minutes; writes into docs/benchmarks
	$(BIN)/python -m benchmarks.bench --out docs/benchmarks $(ARGS)

bench-proxy: setup ## the proxy beside others, on mock engines; peers go into ~/.cache/baton/peers; 4 minutes
	$(BIN)/python -m benchmarks.proxy --install-peers $(ARGS)

bench-quick: setup ## has anything become slower? ratios beside docs/benchmarks/quick.json; ARGS=--write-baseline stores new ones
	@$(BIN)/python -m benchmarks.quick $(ARGS)

config-check: setup ## print the effective configuration and where each value comes from
	@$(BIN)/baton config check $(ARGS)

newcomer: setup ## the README's way to a first token, walked on clean Debians 12 and 13 and timed; root, 15 minutes
	$(BIN)/python -m tests.newcomer $(ARGS)

dist: setup ## sdist and wheel of this commit in dist, built twice, the wheel tried away from the tree
	$(BIN)/python -m baton.deploy.release
	WHEEL=$$(echo dist/*.whl) $(BIN)/python -m pytest tests/e2e/test_wheel.py $(ARGS)

docs: setup ## the docs site in build/site, with every link checked; Sphinx goes into ~/.cache/baton/docs-…
	@$(BIN)/python -m tests.site $(ARGS)

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist htmlcov .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
