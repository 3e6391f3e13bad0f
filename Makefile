# The main targets are `make test` and `make demo`; `make help` lists all.

PYTHON := .venv/bin/python
# What runs is installed; and the developers' tools, too.
RUNS := .venv/.runs
INSTALLED := .venv/.installed

# Without bytecode files, each of the hundreds of test processes would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test proof checks proven compiled-tests broker-tests other-tests lint types layers docs wheel planted mutants bench conformance conformance-nova clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-24s %s\n", $$1, $$2 }'

demo: $(RUNS) ## run the demo, with simulated hosts
	@.venv/bin/moor demo

# The other checks run while tests wait.
test: lint ## lint, types, layers, and the tests, on real servers as well; some by turns: tests/stages.py
	@echo '== tests'
	@$(PYTHON) -m tests.servers --brokers 2 --libvirt -- $(MAKE) --no-print-directory --jobs=4 --output-sync=target broker-tests other-tests types layers

# One folder of tests after the other. Those that passed are not run again until a file changes, so it goes on where it was.
proof: checks ## the same, with all tests: tests/stages.py
	@state=$$({ git rev-parse HEAD; git diff HEAD; git ls-files --others --exclude-standard -z | xargs -0r git hash-object; } | git hash-object --stdin) && \
	  { $(PYTHON) -m tests.servers --brokers 4 --browser --guests --mariadb -- $(MAKE) --no-print-directory --keep-going proven STATE=$$state; \
	    $(PYTHON) -m tests.proven build/proof/$$state; }

checks: $(INSTALLED)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types lint layers docs compiled-tests

PARTS := $(sort $(foreach file,$(shell find tests -name 'test_*.py'),$(word 2,$(subst /, ,$(file)))))
# The longest of these tests take two minutes of a processor that they have alone.
PROOF_TEST_S := 600
proven: $(PARTS:%=build/proof/$(STATE)/%) build/proof/$(STATE)/planted

build/proof/$(STATE)/%:
	@echo '== $*'
	@mkdir -p $(@D)
	@$(PYTHON) -m pytest tests/$* --hypothesis-profile proof --timeout $(PROOF_TEST_S) --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 15 --junit-xml $(@D)/$(basename $*).xml
	@touch $@

# Each bug is planted for the test that saw it.
build/proof/$(STATE)/planted:
	@echo '== planted bugs'
	@mkdir -p $(@D)
	@$(PYTHON) -m tests.planted --again
	@touch $@

# The test processes all start at the same time, and each would compile every file. So one process compiles all files before, while
# other things are checked. Its errors are ignored here: the tests report them.
compiled-tests: $(INSTALLED)
	@$(PYTHON) -m pytest --collect-only -qq >/dev/null 2>&1 || true

# Some tests with the real broker stop it, so each test process has its own broker; with only one broker there is one process. These
# tests mostly wait, so the other tests run at the same time.
broker-tests: compiled-tests
	@$(PYTHON) -m pytest -m 'rabbitmq and not proof' --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 15

# The simulation's files take longest, so they start first.
other-tests: compiled-tests
	@$(PYTHON) -m pytest tests/simulation tests -m 'not rabbitmq and not proof' --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 40

lint: $(INSTALLED) ## style, and formatting
	@echo '== lint'
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check

types: $(INSTALLED) ## mypy, strict
	@echo '== types'
	@.venv/bin/mypy

layers: $(INSTALLED) ## who may import whom, and how many tests name the insides of rooms
	@echo '== layers'
	@.venv/bin/lint-imports
	@mkdir -p build
	@$(PYTHON) -m tools.doors >build/doors.txt || { tail -2 build/doors.txt; exit 1; }

docs: $(INSTALLED) ## the docs as a site, in build/site; a link that leads nowhere is an error
	@echo '== docs'
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --config-file deploy/site/mkdocs.yml >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }
	@echo 'built: python3 -m http.server --directory build/site'

planted: $(INSTALLED) ## which kind of test sees which planted bug; hours; goes on after an interruption
	@echo '== planted bugs'
	@$(PYTHON) -m tests.servers --brokers 2 --browser --guests --mariadb -- $(PYTHON) -m tests.planted

SEED := 1
mutants: $(INSTALLED) ## which of 300 small changes of the product no test notices; SEED=2 draws others
	@echo '== mutants'
	@$(PYTHON) -m tests.servers --brokers 2 --browser --libvirt -- $(PYTHON) -m tests.judge.living --seed $(SEED)

wheel: $(INSTALLED) ## the package, as a file in dist/ for pip
	@echo '== wheel'
	@$(PYTHON) -m tools.pages.bus_reference >bus/asyncapi.json
	@$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

bench: $(INSTALLED) ## measure; takes the whole machine
	@echo '== benchmarks'
	@$(PYTHON) -m tools.benchmarks

conformance: $(INSTALLED) ## OpenStack's published clients against our placement, a real Ironic beside the simulated one; installs them
	@echo '== conformance'
	@$(PYTHON) -m tests.conformance.asyncapi_parser
	@$(PYTHON) -m tests.conformance.clients
	@$(PYTHON) -m tests.nova.schema --compare
	@$(PYTHON) -m tests.servers --brokers 1 -- $(PYTHON) -m tests.conformance.ironic

conformance-nova: $(INSTALLED) ## operations on a whole real Nova, with our scheduler and its own; installs it
	@echo '== a whole Nova'
	@$(PYTHON) -m tests.conformance.nova

clean: ## remove the environment and every cache
	rm -rf .venv .venvs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNS): pyproject.toml
	@sh .ci/venv.sh
	@touch $@

$(INSTALLED): pyproject.toml
	@echo '== environment'
	@sh .ci/venv.sh dev
	@touch $(RUNS) $@
