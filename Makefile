# Everything a fresh machine needs (Python 3.11+, pip, a C++ compiler) is set up by these targets themselves.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/gevit/attention/kernel/*)

.PHONY: demo test lint clean

demo: $(READY)  ## train r4_sa on rotated digits, test it, and write a report: 4 to 5 minutes on 2 cores
	rm -rf demo
	$(BIN)/gevit train --config configs/demo.yaml --out demo

test: lint  ## lint, types and tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): $(SOURCES)
	python3 -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build demo src/*.egg-info
	find src -name '*.so' -delete
