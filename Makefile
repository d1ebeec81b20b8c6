.DEFAULT_GOAL := help
.PHONY: help demo test matrix planted quick checks docs lock rehearse bench measure chaos simulate mutants clean

help:   ## show this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

demo:   ## install the package in .venv-demo and run the shop, with workers killed and paused
	@scripts/demo $(SHOP)

test:   ## lint, types, docs and every test on one Python and Celery; installs servers where it may
	@scripts/test

matrix: ## what could differ on the lowest versions and the other Pythons, types as users see them, and the files to release
	@scripts/test -e lowest,py311,py312,py313,pyright,celery-types,dist

planted: ## plant every known defect, in the rules, a store and the worker: each has to be found
	@scripts/test -e planted

quick:  ## the tests that need no server, in under two minutes
	@scripts/tox run -e quick

checks: ## style, format, layers, types, and the documentation into docs/_build/html
	@scripts/tox run -e checks

docs:   ## the documentation as a site, in docs/_build/html
	@scripts/tox run -e docs

lock:   ## tests/lock.txt anew: versions and hashes of all that the tests and the documentation need
	@scripts/tox run -e lock

rehearse: ## a release from a fresh clone to installed files, quick starts and documentation
	@$$(scripts/python) scripts/rehearse.py

bench:  ## cycles and throughput as ratios, and beats under faults; the report goes to the terminal
	@scripts/tox run -e bench

measure: ## the calls of a task, the size of the repository; scripts/measure has the lines of a feature
	@scripts/tox run -e measure

chaos:  ## ten minutes of random kills, pauses, cuts and restarts, and an independent checker
	@scripts/tox run -e chaos

simulate: ## many schedules of the shipped worker, each from its seed, and a checker
	@scripts/tox run -e simulate

mutants: ## change the rules in every small way, and list the changes that no unit test finds
	@scripts/tox run -e mutants

clean:  ## remove everything these commands have made
	rm -rf .tox .venv-tox .venv-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache build dist docs/_build mutants var
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
