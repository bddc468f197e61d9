# Every verb of this project, once. CI runs the same ones.
#
#   make report   play all scenarios in both worlds -> out/report/index.html, out/results.json
#   make test     lint, types, tests, and the scenarios as tests: some 27 minutes on two cores. Of what takes longer it plays a
#                 sample that is the same each time: planted bugs, single faults, combinations, rounds of benchmarks.
#                 It is `make pure`, which starts no engine, beside `make real`, which has the scenarios
#   make vllm     vLLM's own processes, in an environment of their own -> out/vllm/report/index.html, out/vllm/results.json
#   make vllm-soak  all that can be played with vLLM, ten times
#   make sim      the twin alone, in an environment without torch and pyzmq
#   make check    lint and types
#   make soak     the long forms: every scenario ten times, tests with ten times the examples and without samples, every planted
#                 bug in each world, all rings and waves explored, every fault at every crossing
#   make mutation plant small bugs into the engine and count those that the lab sees -> out/mutation.json
#   make picture  docs/report.png from the last report (needs Chromium)
#   make clean    remove what the others made, environments excepted; end what dead labs left
#
# Set-up is part of each of them and costs nothing the second time.
#   PYTHON=python3.12                                    another interpreter (3.11 or newer)
#   ARGS="--scenario '*dies*'"                           more arguments for ringtwin run
#   VENV=.venv-gpu VENV_FLAGS=--system-site-packages     use the torch (CUDA) that the system's Python already has

PYTHON ?= python3
VENV ?= .venv
VENV_FLAGS ?=
VENV_SIM ?= .venv-sim
VENV_VLLM ?= .venv-vllm
OUT ?= out
ARGS ?=
TIMES ?= 10
# Tests without a play of real processes: nothing in them can be disturbed by what runs beside it.
PURE = tests/guarantees tests/law tests/mutation tests/sweep tests/explorer tests/sim tests/engine/core tests/reports \
  tests/scenarios/history tests/scenarios/lab tests/engine/coordinator tests/engine/wire
IGNORED = $(addprefix --ignore ,tests/benchmarks tests/mutants $(PURE))
PYTEST = $(VENV)/bin/python -m pytest
# What the samples of `make test` are samples of, and more.
WHOLE = PRODUCTS=all PLANTED=all SWEEP_PLAYS=3000 KV_TURNS=40 RINGTWIN_TURNS=7 RINGTWIN_ROUNDS=50 \
  RINGTWIN_PLACEMENTS=3

# Hundreds of processes import the same files, torch's thousands among them: compiled once, also where an environment says
# otherwise.
export PYTHONDONTWRITEBYTECODE =

# Wheels that pip was told of, for uv, too.
FIND_LINKS = $$($(PYTHON) -m pip config get global.find-links 2>/dev/null || echo "$$PIP_FIND_LINKS")

.PHONY: report test pure real sim vllm vllm-soak check soak mutation picture clean setup
.DEFAULT_GOAL := report

report: $(VENV)/.ready
	$(VENV)/bin/ringtwin run --out $(OUT) $(ARGS)

# $(call beside,NAME,COMMAND,OTHER): both at once. The output of the first comes last.
beside = $(2) >$(OUT)/$(1).log 2>&1 & first=$$!; trap 'kill $$first; exit 130' INT TERM; $(3); other=$$?; \
  wait $$first; first=$$?; cat $(OUT)/$(1).log; exit $$((first + other))

# Real processes wait more than they compute. What computes runs beside them, and gives way.
test: check
	@mkdir -p $(OUT)
	$(call beside,pure,nice -n 19 $(MAKE) pure,$(MAKE) real)

pure: $(VENV)/.ready
	$(PYTEST) -n 2 $(PURE)
	$(PYTEST) -n 2 tests/mutants -k "sim and planted_bug"
	$(PYTEST) tests/mutants -k "sim and without_the_bug"

# Two real things at a time, for two cores; alone what is measured, or sees a bug only while nobody starves.
real: $(VENV)/.ready
	@mkdir -p $(OUT)
	$(PYTEST) tests/benchmarks
	$(call beside,engine,$(PYTEST) tests/engine tests/faults $(IGNORED),$(PYTEST) tests --ignore tests/engine \
	  --ignore tests/faults $(IGNORED))
	$(PYTEST) tests/mutants -k "not sim"
	$(PYTEST) -n 4 scenarios --out $(OUT)/pytest

sim: $(VENV_SIM)/.ready
	$(VENV_SIM)/bin/python -c "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('torch', 'zmq'))))"
	$(VENV_SIM)/bin/ringtwin run --world sim --out $(OUT)/sim $(ARGS)

vllm: $(VENV)/.ready $(VENV_VLLM)/.ready
	RINGTWIN_VLLM_PYTHON=$(abspath $(VENV_VLLM))/bin/python $(VENV)/bin/ringtwin run --world vllm --out $(OUT)/vllm $(ARGS)
	@# What it could play of our engine's scenarios is played with that, too, so that the report has them side by side.
	$(VENV)/bin/python -c "import json; print(*dict.fromkeys(one['name'] for one in json.load(open('$(OUT)/vllm/results.json'))['scenarios'] \
	  if not one['name'].startswith('test_vllm_')), sep='\n')" | tr '\n' '\0' | sed -z '/^$$/d; s/^/--scenario=/' | \
	  xargs -0 --no-run-if-empty $(VENV)/bin/ringtwin run --out $(OUT)/vllm/beside
	$(VENV)/bin/ringtwin report $(OUT)/vllm/runs $$(ls -d $(OUT)/vllm/beside/runs 2>/dev/null) -o $(OUT)/vllm/report/index.html \
	  --json $(OUT)/vllm/results.json

vllm-soak: $(VENV)/.ready $(VENV_VLLM)/.ready
	for i in $$(seq $(TIMES)); do RINGTWIN_VLLM_PYTHON=$(abspath $(VENV_VLLM))/bin/python $(VENV)/bin/ringtwin run --world vllm \
	  --scenario '*' --seed $$i --out $(OUT)/vllm-soak/$$i $(ARGS) || exit $$?; done

check: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

soak: $(VENV)/.ready
	$(WHOLE) SCHEDULER_EXAMPLES=1500 KV_EXAMPLES=3000 RANDOM_PLANS=500 PREEMPTED=3000 RANDOM_ENGINE_PLANS=200 RINGTWIN_KILLS=200 RINGTWIN_RING_MESSAGES=1000000 \
	  RINGTWIN_RING_MIXED=10000 $(PYTEST) tests
	$(VENV)/bin/python -m tests.explorer --full
	$(VENV)/bin/python -m tests.sweep --pairs 1200 --out $(OUT)/sweep
	for i in $$(seq $(TIMES)); do $(VENV)/bin/ringtwin run --seed $$i --out $(OUT)/soak/$$i $(ARGS) || exit $$?; done
	$(VENV)/bin/ringtwin run --world engine --unsteady 0.008 --out $(OUT)/soak/unsteady

mutation: $(VENV)/.ready
	$(VENV)/bin/python -m tests.mutation --json $(OUT)/mutation.json $(ARGS)

clean:
	if [ -x $(VENV)/bin/ringtwin ]; then $(VENV)/bin/ringtwin doctor --clean; fi
	rm -rf $(OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks build *.egg-info
	find engine faults sim scenarios reports tests -name __pycache__ -type d -prune -exec rm -rf {} +

picture:
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1200 \
		--screenshot=docs/report.png "file://$(CURDIR)/$(OUT)/report/index.html"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml requirements.lock
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed: make PYTHON=python3.12')"
ifeq ($(strip $(VENV_FLAGS)),)
	@# A pip of its own takes longer to install than all the rest: the interpreter's, if it has one, serves as well.
	test -x $(VENV)/bin/uv || { $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(VENV)/bin/python install --quiet --disable-pip-version-check uv; } || { \
	  $(PYTHON) -m venv $(VENV) && $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv; }
	@# Without wheels at hand uv chooses the torch that fits this machine; where its index cannot be reached, PyPI's.
	links="$(FIND_LINKS)"; install="$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python -c requirements.lock"; \
	if [ -n "$$links" ]; then UV_FIND_LINKS="$$links" $$install -e '.[engine,test]'; \
	else $$install --torch-backend=auto -e '.[engine,test]' || $$install -e '.[engine,test]'; fi
else
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	@# What the system has stays as it is, so it is not pinned, and only what it lacks is installed.
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[engine,test]'
endif
	touch $@

# vLLM without its CUDA packages: its control plane runs without them.
$(VENV_VLLM)/.ready: requirements-vllm.txt $(VENV)/.ready
	test -x $(VENV_VLLM)/bin/python || $(PYTHON) -m venv $(VENV_VLLM)
	links="$(FIND_LINKS)"; install="$(VENV)/bin/uv pip install --quiet --python $(VENV_VLLM)/bin/python"; \
	if [ -n "$$links" ]; then UV_FIND_LINKS="$$links" $$install --no-deps -r requirements-vllm.txt; \
	else $$install --torch-backend=cpu --no-deps -r requirements-vllm.txt; fi
	touch $@

$(VENV_SIM)/.ready: pyproject.toml requirements.lock
	test -x $(VENV_SIM)/bin/python || $(PYTHON) -m venv $(VENV_SIM)
	$(VENV_SIM)/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e .
	touch $@
