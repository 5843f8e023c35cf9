# The commands of a newcomer and of CI. Everything is below the clone: .venv, .ansible, .cache, build, reports.
PYTHON ?= python3
INVENTORY ?= inventories/local
ARGS ?=
BIN := .venv/bin

.PHONY: demo demo-stop test lint sanity unit e2e soak clean

# Two verified gpt-oss servers on this machine. ARGS='-e …' goes to ansible-playbook.
demo: .venv
	$(BIN)/ansible-playbook site.yml -i inventories/local $(ARGS)

# Takes the servers down; make demo-stop ARGS='-e fleet_purge=true' removes what demo installed as well.
demo-stop: .venv
	$(BIN)/ansible-playbook playbooks/stop.yml -i inventories/local $(ARGS)

# The controller's environment. Rebuilt when what is in pyproject.toml changed.
.venv: .venv/.ready
.venv/.ready: pyproject.toml tools/make_venv.py
	$(PYTHON) tools/make_venv.py

# Everything that CI runs, the quick parts first.
test: lint sanity unit e2e

lint: .venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/yamllint --strict .
	$(BIN)/python tools/run.py ansible-lint
	$(BIN)/antsibull-changelog lint

sanity: .venv
	$(BIN)/python tools/sanity.py

unit: .venv
	$(BIN)/python tools/run.py pytest tests/unit

# The local deployment end to end, with real vLLM.
e2e: .venv
	$(BIN)/python tools/run.py pytest tests/e2e -m "not soak"

# Random kills for longer: SOAK_ROUNDS=10, SOAK_SEED=… to repeat a run.
soak: .venv
	$(BIN)/python tools/run.py pytest tests/e2e -m soak -s

clean:
	rm -rf .venv .ansible .cache build reports
