# The commands of a newcomer and of CI. Everything is below the clone: .venv, .ansible, .cache, build, reports.
PYTHON ?= python3
ARGS ?=
RECIPE ?=
PLATFORM ?= cpu
SCENARIO ?=
NODES ?= 10
RELEASE ?=
BIN := .venv/bin
SLOWEST := --durations=10 --durations-min=5
.DEFAULT_GOAL := help
# images of containers set it: then each ansible-playbook compiles all that it imports anew, half of its processor time
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-stop test lint sanity unit e2e nodes nodes-test molecule matrix matrix-one fleet bench-noop bench-hosts node node-stop \
	soak bench-weights docs docs-site clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+( [a-z-]+)*:.*## / {sub(" .*", "", $$1); printf "%-14s %s\n", $$1, $$2}' Makefile

# Two verified gpt-oss servers on this machine, or another recipe's. ARGS='-e …' goes to ansible-playbook.
demo: .venv ## two verified servers on this machine; RECIPE=cpu-dynamo for others, ARGS=… goes to ansible-playbook
	$(BIN)/ansible-playbook site.yml -i inventories/local $(if $(RECIPE),-e fleet_recipe=$(RECIPE)) $(ARGS)

# Takes the servers down; make demo-stop ARGS='-e fleet_purge=true' removes what demo installed as well.
demo-stop: .venv ## stop them; ARGS='-e fleet_purge=true' also removes what was installed
	$(BIN)/ansible-playbook playbooks/stop.yml -i inventories/local $(ARGS)

# The controller's environment. Rebuilt when what is in pyproject.toml changed.
.venv: .venv/.ready
.venv/.ready: pyproject.toml tools/make_venv.py
	$(PYTHON) tools/make_venv.py

# Everything that CI runs: two targets at a time, lint and then the longest first.
test: .venv ## everything that CI runs
	$(BIN)/python tools/checks.py lint nodes e2e unit 'molecule/*' sanity matrix-one

lint: .venv ## ruff, yamllint, ansible-lint, changelog fragments, plugin documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/yamllint --strict .
	$(BIN)/python tools/run.py ansible-lint
	$(BIN)/antsibull-changelog lint
	$(BIN)/python tools/run.py antsibull-docs lint-collection-docs --plugin-docs .

sanity: .venv ## ansible-test sanity
	$(BIN)/python tools/sanity.py

unit: .venv ## unit tests
	$(BIN)/python tools/run.py pytest tests/unit $(SLOWEST)

# The local deployment end to end, with real vLLM.
e2e: .venv ## the local deployment end to end, with real vLLM
	$(BIN)/python tools/run.py pytest tests/e2e $(SLOWEST)

# Servers under a real systemd, on a node in a container: needs root and Docker, which is started where none runs.
# Without them it says so and is left out; with CI set it fails.
nodes nodes-test: .venv ## servers on test nodes; needs root and Docker
	$(BIN)/python tools/run.py pytest tests/nodes $(SLOWEST)

# Molecule's scenarios, each on separate nodes: make molecule SCENARIO=default; without a name all except soak_*.
molecule: .venv ## Molecule's scenarios; SCENARIO=default for one
	$(BIN)/python tools/scenarios.py $(SCENARIO)

# Plan, site and status under every supported ansible-core that this machine has a Python for; RELEASE=2.20 for one.
matrix: .venv ## playbooks under every supported ansible-core; RELEASE=2.20 for one
	$(BIN)/python tools/matrix.py $(RELEASE)

# The same under one release, another than that of .venv where there is a Python for it.
matrix-one: .venv
	$(BIN)/python tools/matrix.py --other

# Many nodes at once, and what the playbooks cost there: make fleet NODES=10.
fleet: .venv ## many test nodes at once; NODES=10
	$(BIN)/python tools/fleet.py $(NODES)

# A run that has nothing to do, beside pings, pyinfra and stock modules that check the same: ARGS='--rounds 9'.
bench-noop: .venv ## a converged run beside pings, pyinfra and stock modules
	$(BIN)/python tools/bench_noop.py $(ARGS)

# The controller with many hosts that have nothing to do; ARGS='10 30 100'.
bench-hosts: .venv ## seconds and memory of the controller for 10, 30 and 100 hosts
	$(BIN)/python tools/run.py python tools/bench_hosts.py $(ARGS)

# A node to try things on: make node PLATFORM=cpu prints how to reach it, make node-stop removes all of this clone.
node: .venv ## start a test node; PLATFORM=cpu
	$(BIN)/python tools/nodes.py create node-$(PLATFORM) --platform $(PLATFORM)

node-stop: .venv ## remove the test nodes of this clone
	$(BIN)/python tools/nodes.py destroy

# Random kills for longer: SOAK_ROUNDS=10, SOAK_SEED=… to repeat a run. And other, more examples for the property tests.
soak: .venv ## random kills and more examples; SOAK_ROUNDS=10, SOAK_SEED=…
	$(BIN)/python tools/run.py pytest tests/unit -m 'hypothesis and not soak' --hypothesis-profile=soak
	$(BIN)/python tools/run.py pytest tests/e2e tests/unit tests/nodes -m soak -s
	$(BIN)/python tools/scenarios.py soak

# model_weights against hf download on this machine: times, ratios, promises.
bench-weights: .venv ## model_weights against hf download
	$(BIN)/python tools/run.py python tools/bench_weights.py $(ARGS)

# The pages that are generated from the source: error codes, recipe keys, variables of roles.
docs: .venv ## write the generated pages of docs/ again
	$(BIN)/python tools/errors_page.py
	$(BIN)/python tools/run.py python tools/reference_pages.py
	$(BIN)/python tests/nodes/breakages.py

# Modules, plugins and roles as a site.
docs-site: .venv ## build/docs/html: the documentation of modules and roles
	$(BIN)/python tools/run.py python tools/docs_site.py

clean: ## remove .venv, caches, test nodes and reports
	test ! -d .cache/nodes || $(PYTHON) tools/nodes.py destroy
	rm -rf .venv .ansible .cache build reports
