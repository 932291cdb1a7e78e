# `make demo`, `make test` and `make test-sites` do all the set-up by themselves; see README.md.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-sites fuzz bench bench-sites bench-similarity bench-ratios bench-selection bench-ray format clean

demo: .stamps/core  ## compare a few methods on label-skewed digits
	$(BIN)/fedskew compare fedavg fedprox scaffold ditto --config digits --seeds 3 --out results/demo

test: .stamps/dev  ## lint, types, and all tests that start no servers and sites
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 4 --dist loadfile -m "not sites"

# By themselves: each process takes memory of its own, and their links have deadlines.
test-sites: .stamps/dev  ## tests with real processes of servers, sites and Ray
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist loadfile -m sites tests/sites tests/federate/backends

fuzz: .stamps/dev  ## the long forms of tests/fuzz: malformed input, 200 kills, flipped bits
	FEDSKEW_FUZZ=long OMP_NUM_THREADS=1 $(BIN)/pytest -s tests/fuzz

bench: .stamps/dev  ## speed against plain PyTorch, pfl and Flower, and against the machine
	$(BIN)/python -m benchmarks.run --out results/bench

bench-similarity: .stamps/dev  ## what the similarity matrix measures, costs and withstands
	$(BIN)/python benchmarks/similarity.py

bench-ratios: .stamps/dev  ## how near density-ratio estimators come to a known truth
	$(BIN)/python -m benchmarks.ratios --out results/ratios

bench-selection: .stamps/dev  ## what it changes how ties between rounds are broken
	$(BIN)/python benchmarks/selection_ties.py

bench-ray: .stamps/dev  ## seconds a round on a Ray cluster on this machine, and of runs side by side
	$(BIN)/python -m benchmarks.ray_rounds

bench-sites: .stamps/dev  ## what a round on real sites costs: seconds by phase, CPU, bytes
	$(BIN)/python -m benchmarks.sites --out results/sites

format: .stamps/dev
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf .venv .bench-venv .stamps build dist results

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch first and pinned: left to the resolver it would bring gigabytes of GPU libraries along.
.stamps/core: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP_INSTALL) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(PIP_INSTALL) -e .
	@mkdir -p .stamps && touch $@

.stamps/dev: .stamps/core
	$(PIP_INSTALL) -e ".[dev]"
	@mkdir -p .stamps && touch $@
