# `make` alone explains the targets.
VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
OUT    := runs/fashion-mnist-seed1
BASE   := HEAD
CORES  := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1)
TEST_PROCESSES ?= $(shell echo $$(( $(CORES) < 4 ? $(CORES) : 4 )))
PYTEST  = $(PYTHON) -m pytest -q -n $(TEST_PROCESSES) --dist worksteal
# COVERAGE=1: measure which lines the tests run (worker processes are not measured).
COVER   = $(if $(COVERAGE),--cov --cov-report=term:skip-covered --cov-report=html:build/coverage)

# Bytecode is kept: the tests start many processes, and each would compile everything anew.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help help-all setup run test coverage test-fast test-flower test-browser test-docs test-examples check fix same-numbers step-times \
	bench bench-quick bench-peers results api-page robust correctness reliability fuzz lock licenses audit docs pictures clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  make help-all       targets for maintainers, too"

help-all: help
	@awk -F ':.*#> ' '/^[a-z-]+:.*#> / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Bytecode is compiled when a module is first imported: compiling all packages takes minutes on a slow machine.
PIP = $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-compile

# Everything by digest, torch by version, and fedplt itself with the build tools that are then there.
$(READY): pyproject.toml constraints.txt requirements-dev.txt
	python3 -m venv $(VENV)
	$(PIP) --require-hashes --no-deps -r requirements-dev.txt
	$(PIP) -c constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $(READY)

setup: $(READY)  ## make .venv with fedplt and everything needed to work on it

run: setup  ## train FedPLT on Fashion-MNIST with 50 unequal clients and leave a report
	@if [ -f $(OUT)/model.safetensors ]; then $(VENV)/bin/fedplt report $(OUT); \
	elif [ -d $(OUT) ]; then $(VENV)/bin/fedplt resume $(OUT); \
	else $(VENV)/bin/fedplt run fashion-mnist --out $(OUT); fi

test: setup  ## run all tests (a few minutes; TEST_PROCESSES=1: one after the other)
	$(PYTEST) $(COVER) -m "not flower and not browser and not examples"

coverage:  ## run all tests and say which lines they miss (build/coverage/index.html)
	$(MAKE) test COVERAGE=1

test-fast: setup  ## run the tests that take no processes and little time (under a minute)
	$(PYTEST) -m "not slow and not flower and not browser and not examples" --hypothesis-profile fast

test-flower: setup  #> run the tests that start Flower's own processes (about 20 minutes)
	$(PYTHON) -m pytest -q -n 0 -m flower

test-browser: setup  #> open the report, the live page and the site in Chromium (installed here, if that is allowed)
	tools/install_chromium.sh
	$(PYTHON) -m pytest -q -n 0 -m browser tests/report tests/test_docs_site.py

test-examples: setup  #> run the examples and compare what they print
	$(PYTHON) -m pytest -q -n 0 -m examples tests/test_examples.py

check: setup  ## lint, formatting and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

fix: setup  ## repair lint and formatting
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

same-numbers: setup  ## does the working tree compute what commit BASE (HEAD) does, bit by bit?
	$(PYTHON) tools/same_numbers.py --base $(BASE)

step-times: setup  ## is a training step as fast as at commit BASE (HEAD)? (quiet machine)
	$(PYTHON) tools/step_times.py --base $(BASE)

bench: setup  ## all benchmarks on this machine, into results/ (about 15 minutes, quiet machine)
	$(PYTHON) -m benchmarks.local results/local.json
	$(PYTHON) -m benchmarks.scale results/scale.json
	$(PYTHON) -m benchmarks --out results/bench.json $(PEERS)

bench-quick: setup  #> fedplt against a plain PyTorch loop, under a minute
	$(PYTHON) -m benchmarks --quick

bench-peers:  #> environments for Flower, pfl-research and FedJAX, then all benchmarks
	python3 -m venv .venv-flower && .venv-flower/bin/pip install -q torch==2.13.0 "flwr[simulation]==1.41.0"
	python3 -m venv .venv-pfl && .venv-pfl/bin/pip install -q torch==2.13.0 pfl==0.6.0
	python3 -m venv .venv-fedjax && .venv-fedjax/bin/pip install -q fedjax==0.0.17 "jax[cpu]"
	$(MAKE) bench PEERS="--flower .venv-flower/bin/python --pfl .venv-pfl/bin/python --fedjax .venv-fedjax/bin/python"

results: setup  ## rebuild tables, figures and claims, here and in README.md, from results/
	$(PYTHON) -m reproduction tables --page docs/reproduction.md
	$(PYTHON) -m reproduction.readme_table
	$(PYTHON) -m reproduction beyond --no-train

api-page: setup  #> write docs/api.md from the docstrings
	$(PYTHON) tools/api_page.py

robust: setup  #> rules of aggregation against bad clients, into results/robust and docs/robust.md
	$(PYTHON) -m tools.robust_page

correctness: setup  #> compare with slow references and write docs/correctness.md (a few minutes)
	$(PYTHON) -m tools.correctness_page

reliability: setup  #> attack runs (power loss, damage, kills, odd inputs) and write docs/reliability.md (half an hour)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt atheris
	$(PYTHON) -m tools.reliability_page

FUZZ_SEED ?= 1
fuzz: setup  #> 100,000 odd inputs for all that reads one: no traceback, no hang, no 2 GB
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt atheris
	$(PYTHON) -m tools.reliability.fuzz 100000 $(FUZZ_SEED)
	$(PYTHON) -m tools.reliability.bad_clients 100000 $(FUZZ_SEED)
	$(PYTHON) -m tools.reliability.fuzz_decoders 100000 $(FUZZ_SEED)

lock: setup  ## write requirements-dev.txt anew, after a change of pyproject.toml or constraints.txt
	$(PYTHON) tools/lock.py $(UPGRADE)

licenses: setup  #> write docs/licenses.md: the license of every package
	$(PYTHON) tools/licenses_page.py

audit:  #> ask the package index for known vulnerabilities of the locked packages
	python3 -m venv .venv-audit && .venv-audit/bin/pip install --quiet pip-audit==2.10.1
	.venv-audit/bin/python tools/audit.py

docs: setup  ## build the documentation site into build/site, without a network
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
	@echo "Read it: $(PYTHON) -m http.server --directory build/site, or open build/site/index.html"

test-docs: setup  #> run everything the README and the documents show
	$(PYTEST) tests/test_readme.py tests/test_shown_commands.py tests/test_own_data_page.py tests/test_docs_site.py src

pictures: setup  #> draw the pictures of docs/pictures.md
	$(PYTHON) -m tools.method_pictures

clean:  ## delete the environment and caches (never runs/)
	rm -rf $(VENV) .venv-audit .pytest_cache .mypy_cache .ruff_cache .hypothesis build
