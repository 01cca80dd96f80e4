PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

TORCH := torch==2.13.0

.PHONY: help demo test test-thorough test-all test-torch package-check lint docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

demo: $(STAMP)  ## optimise a shipped INT8 BERT and print the report
	$(BIN)/python -m benchmarks.inflate benchmarks/models/bert_int8_trivial.onnx --into out
	$(BIN)/eqsat optimize out/bert_int8_trivial.onnx -o out/bert_int8_trivial.eqsat.onnx

test: $(STAMP)  ## run the tests, in about four minutes on two cores
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not thorough'

test-thorough: $(STAMP)  ## run what continuous integration runs beside them, in about three minutes
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'thorough and not slow'

test-all: $(STAMP)  ## run every test
	$(BIN)/python -m pytest

test-torch: $(STAMP)  ## run the tests that need PyTorch, which it installs
	$(BIN)/python -m pip install --quiet $(TORCH) --editable '.[test,torch]'
	$(BIN)/python -m pytest tests/dynamo tests/fx tests/engines tests/frontends/test_torch_export.py

package-check: $(STAMP)  ## build sdist and wheel, install the wheel elsewhere and optimise a model with it
	rm -rf build/package dist
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m benchmarks.inflate benchmarks/models/squeezenet.onnx --into out
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install --quiet dist/*.whl
	cd build && package/bin/eqsat optimize ../out/squeezenet.onnx -o squeezenet.onnx --form onnxruntime --cost measured
	cd build && package/bin/eqsat verify ../out/squeezenet.onnx squeezenet.onnx
	cd build && package/bin/eqsat compare ../out/squeezenet.onnx --target onnxruntime-cpu,tensorrt-like --cost kernels
	cd build && package/bin/eqsat bench ../out/squeezenet.onnx squeezenet.onnx --runs 1 --processes 1

lint: $(STAMP)  ## style and types
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(STAMP)  ## build the documentation site in build/site; warnings are errors
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/mkdocs build --strict

clean:  ## remove what the other targets made
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
