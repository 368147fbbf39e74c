# Everything a fresh machine needs (Python 3.11+, pip, a C++ compiler) is set up by these targets themselves.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/gevit/attention/kernel/*)

.PHONY: demo test lint clean

demo: $(READY)  ## a shipped model at work within half a minute, then r4_sa trained on rotated digits: under 5 minutes on 2 cores
	rm -rf demo
	$(BIN)/gevit equivariance --model d4_sa --pretrained --images 2 --figure demo/feature_maps.png
	@echo "The shipped r4_sa on embedded digits, some of which it was trained on: a look, not a test."
	$(BIN)/gevit evaluate --model r4_sa --pretrained --data digits --limit 60 --angles 4
	$(BIN)/gevit train --config configs/demo.yaml --out demo/run

test: lint  ## lint, types and tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

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
