# Needs Python 3.11, pip and make. Everything goes into .venv at the root.
#   make install   create .venv and install (quick when nothing changed)
#   make demo      two servers and five hospitals on this machine; leaves demo-out/report.html
#   make test      install, then every test
#   make coverage  every test, and how much of each package they run
#   make bundle    one archive for machines without a network: packages by deploy/lock.txt, code, docs, checksums, installer
#   make soak      the long ones: every place at which a process can be killed, altered inputs, load, ten thousand simulated accidents; counts in results-out/soak
#   make test-deploy  studies across containers, one server killed, strangers who enrol; needs root, a container engine and Compose
#   make results   the papers' tables and plots in docs/results, from docs/results/data
#   make docs      the documents as a site, with its reference made from code, into build/docs; open build/docs/index.html
#   make check     format, lint, types, import contracts, tests
# On a machine without a GPU, PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu" saves a large download.

PYTHON ?= python3.11
PIP_FLAGS ?=
DEMO_OUT ?= demo-out
SOAK_OUT ?= results-out/soak
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n < 3 ? 3 : n > 4 ? 4 : n )))
PYTEST_FLAGS ?= --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
BUNDLE_FLAGS ?=
.PHONY: needed-deploy needed-soak help install bundle lock demo results test coverage test-deploy static check clean soak docs

help:
	@sed -n 's/^#   //p' Makefile

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -e '.[dev]'
	$(BIN)/python -m harness.warm
	touch $(STAMP)

demo: install
	$(BIN)/moiety demo --out $(DEMO_OUT)

results: install
	$(BIN)/moiety lab results

# Three workers, four where there are processors for them (tests of processes wait half of their time), a module on one of
# them; PYTEST_FLAGS= runs one test after the other. Every line and branch of protocol/ is run by a test; counting the
# other packages too takes longer, so 'make coverage' does that, and sees only what runs in the tests' own
# processes. Some hundred processes import the packages: their bytecode is kept. Files of tests are in memory (/dev/shm)
# where there is room; TMPDIR= names another place. 'make test' counts in the folders of protocol's own tests alone
# (tests/conftest.py); tests marked 'uncounted' run again what others run and count.
test coverage soak: export PYTHONDONTWRITEBYTECODE :=
test: install
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --cov=protocol --cov-report=
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered

coverage: install
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --cov --cov-report=
	@for package in protocol host servers client_agent harness; do \
	  printf '%s: %s %% covered\n' $$package "$$($(BIN)/coverage report --include="$$package/*" --format=total)"; done

# What cannot be left out is looked for before anything is installed or built: a line says what to install.
needed-deploy needed-soak:
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m tests.needed $(@:needed-%=%)

# BASE_IMAGE: an image with Python 3.11; without one, a base is made here (root, debootstrap).
test-deploy: needed-deploy install
	MOIETY_TEST_DEPLOY=1 $(BIN)/python -m pytest tests/deploy

# What failed beside the others runs once more by itself; the page on reliability prints both, make fails by the second.
soak: needed-soak install
	mkdir -p $(SOAK_OUT)
	@rm -f $(SOAK_OUT)/soak_again.xml; failed=0; \
	MOIETY_SOAK_OUT=$(SOAK_OUT) $(BIN)/python -m pytest -m soak $(PYTEST_FLAGS) --junit-xml=$(SOAK_OUT)/soak.xml || \
	MOIETY_SOAK_OUT=$(SOAK_OUT) $(BIN)/python -m pytest -m soak --last-failed --last-failed-no-failures=none \
	  --junit-xml=$(SOAK_OUT)/soak_again.xml || failed=1; \
	$(BIN)/moiety lab faults --servers --seeds 0-9999 --jobs $$(nproc) --resume --out $(SOAK_OUT)/faults.json || failed=1; \
	exit $$failed

docs: install
	$(BIN)/mkdocs build --strict --quiet -f harness/reference/mkdocs.yml

# dist/moiety-VERSION.tar; BUNDLE_FLAGS="--images moiety-server:local,moiety-agent:local" takes images along. The lock is
# for one version of Python and one kind of machine; 'make lock' writes another, from the index that pip is told.
bundle: install
	$(BIN)/python -m deploy.bundle $(BUNDLE_FLAGS)

lock: install
	$(BIN)/python -m deploy.lock >deploy/lock.new && mv deploy/lock.new deploy/lock.txt
	$(BIN)/python -m deploy.lock --cuda >deploy/lock.new && mv deploy/lock.new deploy/lock-cuda.txt

static: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: static test

clean:
	rm -rf .venv demo-out build dist ./*.egg-info .coverage
