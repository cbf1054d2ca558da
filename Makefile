# Each target sets up what it needs: .venv, once. Arguments go through: make tune ARGS="--help".
PYTHON ?= python3
VENV := .venv/bin/python
ARGS ?=

.PHONY: help setup tune report mpi-demo notebook test test-gpu lint docs dist check-dist clean

help:
	@echo "make tune      find the device, tune a standard set of shapes, show the table"
	@echo "make report    a page of what is tuned and measured on this machine"
	@echo "make mpi-demo  products that four processes share, over MPI, on this machine"
	@echo "make notebook  the notebook about the kernels, docs/ladder.ipynb, in a browser"
	@echo "make test      every test; the CUDA kernels run in the simulator"
	@echo "make test-gpu  the tests on this machine's GPU"
	@echo "make lint      ruff and the rules of the code base"
	@echo "make docs      the documentation as a site, docs/_build/index.html"
	@echo "make dist      wheel and sdist, in dist/"
	@echo "make check-dist  both, each installed and used in an environment of its own"
	@echo "make clean     remove .venv and everything that was built"

setup:
	@$(PYTHON) tools/set_up.py

tune: setup
	@$(VENV) -m pymm.tune $(ARGS)

report: setup
	@$(VENV) -m pymm.report $(ARGS)

mpi-demo: export OMPI_ALLOW_RUN_AS_ROOT = 1
mpi-demo: export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
mpi-demo: export OMPI_MCA_mpi_yield_when_idle = 1
mpi-demo:
	@$(PYTHON) tools/set_up.py mpi
	@.venv/bin/mpirun --oversubscribe -n 4 $(VENV) -m pymm.distributed bench \
		--sizes 500,1000,2000,3000x3000x128 $(ARGS)

notebook:
	@$(PYTHON) tools/set_up.py notebook
	$(VENV) -m jupyterlab docs/ladder.ipynb $(ARGS)

test: setup
	$(VENV) -m pytest -n 2 --dist loadgroup $(ARGS)

test-gpu: setup
	PYMM_TEST_GPU=1 $(VENV) -m pytest $(ARGS)

lint: setup
	$(VENV) -m ruff check .
	$(VENV) -m ruff format --check .
	$(VENV) -m pytest -q tests/test_house.py

docs:
	@$(PYTHON) tools/set_up.py docs
	$(VENV) -m sphinx -W --keep-going -q -b html docs docs/_build $(ARGS)

dist:
	@$(PYTHON) tools/set_up.py dist
	@$(VENV) tools/distribution.py build

check-dist: dist
	@$(VENV) tools/distribution.py check $(ARGS)

clean:
	rm -rf .venv .setup docs/_build build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
