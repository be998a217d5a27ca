# The same verbs as the commands below them, short. `make` alone lists them.
.DEFAULT_GOAL := help
PYTHON ?= python3
INVENTORY ?= inventory.py
HOST ?=
BIN := .venv/bin
LIMIT := $(if $(HOST),--limit $(HOST))

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  HOST=name and INVENTORY=file say which box; the default is every box of inventory.py"

.PHONY: setup
setup: .venv/.complete ## .venv with the gb10 command

.venv/.complete: requirements.lock pyproject.toml
	@tests/machine.sh python
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed"'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: check
check: setup ## data, catalogue and lock, without a box
	$(BIN)/gb10 check --inventory $(INVENTORY)

.PHONY: render
render: setup ## everything that would be put on a box, into rendered/
	$(BIN)/gb10 render --out rendered --inventory $(INVENTORY)

.PHONY: dry
dry: setup ## what a deploy would change
	$(BIN)/pyinfra $(INVENTORY) deploy.py --dry $(LIMIT)

.PHONY: deploy
deploy: setup ## the deploy; it shows what it will do and asks
	$(BIN)/pyinfra $(INVENTORY) deploy.py $(LIMIT)

.PHONY: drift
drift: setup ## what is on a box, against what should be (scripts: gb10 drift, for its exit status)
	$(BIN)/gb10 drift $(HOST) --inventory $(INVENTORY)

.PHONY: lab-needs
lab-needs:
	@tests/machine.sh lab

.PHONY: browser-needs
browser-needs:
	@tests/machine.sh browser

.PHONY: demo
demo: setup lab-needs ## the whole product on a lab host (root, a quarter of an hour the first time, then half a minute)
	$(BIN)/python -m tests.lab.demo

.PHONY: test
test: setup lab-needs browser-needs lint ## all tests (root, two lab hosts at once)
	$(BIN)/python -m tests

.PHONY: test-unit
test-unit: setup ## the tests that need no root and no host
	$(BIN)/pytest tests/unit

.PHONY: lint
lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy gb10 files/*.py

.PHONY: clean-lab
clean-lab: setup ## end all lab hosts and delete the lab's cache
	$(BIN)/python -m tests.lab clean

.PHONY: bench-deploy
bench-deploy: setup lab-needs ## seconds that a deploy with nothing to do takes (after make demo)
	$(BIN)/python -m tests.bench.deploy

.PHONY: bench-drift
bench-drift: setup lab-needs ## seconds and remote commands of gb10 drift, clean 50 times of 50 (after make demo)
	$(BIN)/python -m tests.bench.drift

.PHONY: bench-image
bench-image: setup lab-needs ## seconds of a build, a rebuild, and a change of one flag
	$(BIN)/python -m tests.bench.image

.PHONY: bench-watch
bench-watch: setup lab-needs ## what the watch itself costs (HOST=name, a lab host that was deployed)
	$(BIN)/python -m tests.bench.watch $(if $(HOST),--name $(HOST))

MINUTES ?= 60
.PHONY: soak-watch
soak-watch: setup lab-needs ## an hour of mixed traffic without one change of state (HOST=name, MINUTES=60)
	$(BIN)/python -m tests.bench.soak_watch --minutes $(MINUTES) $(if $(HOST),--name $(HOST))
