# Commands for users and CI. All files are below the clone: .venv, .ansible, .cache, build, reports.
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
# set by container images: each ansible-playbook then compiles its imports again, half of its processor time
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-stop test lint sanity unit e2e nodes nodes-test molecule matrix matrix-one fleet bench-noop bench-hosts node node-stop \
	soak bench-weights docs docs-site clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+( [a-z-]+)*:.*## / {sub(" .*", "", $$1); printf "%-14s %s\n", $$1, $$2}' Makefile

# Two verified gpt-oss servers on this machine, or another recipe's. ARGS='-e …' goes to ansible-playbook.
demo: .venv ## two verified servers on this machine; RECIPE=cpu-dynamo for others, ARGS=… goes to ansible-playbook
	$(BIN)/ansible-playbook site.yml -i inventories/local $(if $(RECIPE),-e fleet_recipe=$(RECIPE)) $(ARGS)

# Stops the servers; make demo-stop ARGS='-e fleet_purge=true' also removes the installed files.
demo-stop: .venv ## stop them; ARGS='-e fleet_purge=true' also removes what was installed
	$(BIN)/ansible-playbook playbooks/stop.yml -i inventories/local $(ARGS)

# The control node's environment, and what the tests add to it. Rebuilt when pyproject.toml changes.
.venv: .venv/.ready
.venv/.ready: pyproject.toml tools/make_venv.py
	$(PYTHON) tools/make_venv.py
.venv/.tests: pyproject.toml tools/make_venv.py
	$(PYTHON) tools/make_venv.py tests

# Everything that CI runs: two targets at a time, lint and then the longest first.
test: .venv/.tests ## everything that CI runs
	$(BIN)/python tools/checks.py lint nodes e2e unit sanity 'molecule/*' matrix-one

lint: .venv/.tests ## ruff, yamllint, ansible-lint, changelog fragments, plugin documentation, rejected words
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/yamllint --strict .
	$(BIN)/python tools/style.py
	$(BIN)/python tools/run.py ansible-lint
	$(BIN)/antsibull-changelog lint
	$(BIN)/python tools/run.py antsibull-docs lint-collection-docs --plugin-docs .

sanity: .venv/.tests ## ansible-test sanity
	$(BIN)/python tools/sanity.py

unit: .venv/.tests ## unit tests
	$(BIN)/python tools/run.py pytest tests/unit $(SLOWEST)

# The local deployment end to end, with real vLLM.
e2e: .venv/.tests ## the local deployment end to end, with real vLLM
	$(BIN)/python tools/run.py pytest tests/e2e $(SLOWEST)

# Servers under a real systemd, on a node in a container. Requires root and Docker, which is started if none runs.
# Without them these tests are skipped with a message; with CI set they fail.
nodes nodes-test: .venv/.tests ## servers on test nodes; needs root and Docker
	$(BIN)/python tools/run.py pytest tests/nodes $(SLOWEST)

# Molecule's scenarios, each on separate nodes: make molecule SCENARIO=default; without a name all except soak_*.
molecule: .venv/.tests ## Molecule's scenarios; SCENARIO=default for one
	$(BIN)/python tools/scenarios.py $(SCENARIO)

# Plan, site and status under every supported ansible-core with a Python on this machine; RELEASE=2.20 for one.
matrix: .venv/.tests ## playbooks under every supported ansible-core; RELEASE=2.20 for one
	$(BIN)/python tools/matrix.py $(RELEASE)

# The same under one release, if possible another than that of .venv.
matrix-one: .venv/.tests
	$(BIN)/python tools/matrix.py --other

# Many nodes at once, with the cost of the playbooks: make fleet NODES=10.
fleet: .venv/.tests ## many test nodes at once; NODES=10
	$(BIN)/python tools/fleet.py $(NODES)

# A converged run, compared with pings, pyinfra and stock modules with the same checks: ARGS='--rounds 9'.
bench-noop: .venv/.tests ## a converged run compared with pings, pyinfra and stock modules
	$(BIN)/python tools/bench_noop.py $(ARGS)

# The control node with many converged hosts; ARGS='10 30 100'.
bench-hosts: .venv/.tests ## seconds and memory of the controller for 10, 30 and 100 hosts
	$(BIN)/python tools/run.py python tools/bench_hosts.py $(ARGS)

# A test node: make node PLATFORM=cpu prints the login command, make node-stop removes all nodes of this clone.
node: .venv/.tests ## start a test node; PLATFORM=cpu
	$(BIN)/python tools/nodes.py create node-$(PLATFORM) --platform $(PLATFORM)

node-stop: .venv/.tests ## remove the test nodes of this clone
	$(BIN)/python tools/nodes.py destroy

# Random kills for longer: SOAK_ROUNDS=10, SOAK_SEED=… to repeat a run. And other, more examples for the property tests.
soak: .venv/.tests ## random kills and more examples; SOAK_ROUNDS=10, SOAK_SEED=…
	$(BIN)/python tools/run.py pytest tests/unit -m 'hypothesis and not soak' --hypothesis-profile=soak
	$(BIN)/python tools/run.py pytest tests/e2e tests/unit tests/nodes -m soak -s
	$(BIN)/python tools/scenarios.py soak

# model_weights compared with hf download on this machine.
bench-weights: .venv/.tests ## model_weights against hf download
	$(BIN)/python tools/run.py python tools/bench_weights.py $(ARGS)

# The generated pages: error codes, recipe keys, variables, breakages.
docs: .venv/.tests ## write the generated pages of docs/ again
	$(BIN)/python tools/errors_page.py
	$(BIN)/python tools/run.py python tools/reference_pages.py
	$(BIN)/python tests/nodes/breakages.py

# Modules, plugins and roles as a site.
docs-site: .venv/.tests ## build/docs/html: the documentation of modules and roles
	$(BIN)/python tools/run.py python tools/docs_site.py

clean: ## remove .venv, caches, test nodes and reports
	test ! -d .cache/nodes || $(PYTHON) tools/nodes.py destroy
	rm -rf .venv .ansible .cache build reports
