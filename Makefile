# make demo and make test need Python ≥ 3.11 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: promises nettest bench-audit bench-codes bench-door bench-hostile bench-memory bench-newcomers bench-network bench-overlap bench-page bench-page-cost bench-slow-lines help install demo test test-all test-browser test-docs test-following test-seeds check bench ban-law drop-outs attack-pages attack-studies codes-page lab-pages paper-page fuzz audit-flips vectors clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# pip says nothing for minutes, so a line every ten seconds says that it is alive, as long as pip's own shell is. The sleep must not
# hold our output open afterwards.
define install
@while sleep 10 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
	echo "  $$(date +%T)  still installing; .venv holds $$(du -sm .venv | cut -f1) MB"; done & \
	trap "kill $$! 2>/dev/null" EXIT; $(BIN)/python -m pip install --quiet --constraint constraints.txt
endef

# PyTorch first and alone: asked for by name and version, pip finds a CPU build where there is one.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Troth needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (a few minutes the first time) …"
	$(install) torch
	$(install) --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing what the tests need …"
	$(install) --editable '.[dev]'
	$(install) --no-deps byzfl
	@touch $@

install: .venv/installed ## Troth, into .venv in this folder

demo: .venv/installed ## a swarm under attack on this machine, on its page
	@$(BIN)/troth demo

check: .venv/installed-dev ## lint, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Neighbours stay together, and share runs; a core for each.
SUITE := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: check ## lint, types, import rules, and the tests that take a moment each (some minutes)
	$(SUITE)

test-all: test ## everything that must hold: make test, then the tests that take seconds each
	$(SUITE) -m 'long and not slow_docs'

test-browser: .venv/installed-dev ## the page in Chromium: live, replay, keys, hostile strings, no network (part of make test-all)
	$(BIN)/python -m pytest -m 'not slow_docs' tests/browser

test-seeds: .venv/installed-dev ## promises under more seeds than make test draws (some minutes)
	TROTH_SEEDS=many $(SUITE) -m 'not slow_docs' tests/protocol/broadcast tests/workshop/chaos

test-following: .venv/installed-dev ## 500 strangers whose contacts lie, all but one: none comes to a wrong state (some minutes)
	$(BIN)/python -m tests.protocol.recovery.lying_contacts --seeds 0..500

test-docs: .venv/installed-dev ## type every command of README and docs, and compare (about twenty minutes)
	$(BIN)/python -m pytest -m slow_docs tests/docs -s --durations=0

bench: .venv/installed-dev ## measure; prints the table and rewrites benchmarks/results.md
	$(BIN)/python -m benchmarks

bench-hostile: .venv/installed-dev ## 10,000 hostile connections against a peer in a run; rewrites benchmarks/results-hostile.md
	$(BIN)/python -m benchmarks.hostile

bench-audit: .venv/installed-dev ## an audit of 1,000 steps of 16 peers (some minutes); rewrites benchmarks/results-audit.md
	$(BIN)/python -m benchmarks.audit

bench-codes: .venv/installed-dev ## how fast vectors become blocks of codes, and numbers again; rewrites benchmarks/results-codes.md
	$(BIN)/python -m benchmarks.codes

bench-door: .venv/installed-dev ## seats of an attacker with many names (some minutes); rewrites benchmarks/results-door.md
	$(BIN)/python -m benchmarks.door

bench-newcomers: .venv/installed-dev ## strangers, a state of 200 MB, and donors and strangers that are killed (half an hour on idle cores); rewrites benchmarks/results-newcomers.md
	$(BIN)/python -m benchmarks.newcomers_large

bench-overlap: .venv/installed-dev ## gradients beside the protocol, on lines with delay (as root, with iproute2); rewrites benchmarks/results-overlap.md
	$(BIN)/python -m benchmarks.overlap

bench-slow-lines: .venv/installed-dev ## time to the same loss on lines of 20 and 100 Mbit/s, TEXT=file (as root, with iproute2; an hour on idle cores); rewrites benchmarks/results-slow-lines.md
	$(BIN)/python -m benchmarks.slow_lines $(TEXT)

bench-page-cost: .venv/installed-dev ## what the page costs peers that train, with three viewers and a stalled one (some minutes on idle cores); rewrites benchmarks/results-page-cost.md
	$(BIN)/python -m benchmarks.page_cost

bench-memory: .venv/installed-dev ## peak memory of four peers with 10⁸ parameters (14 GB, some minutes); rewrites benchmarks/results-memory.md
	$(BIN)/python -m benchmarks.memory

bench-network: .venv/installed-dev ## a step of ten million parameters against gloo and hivemind; rewrites benchmarks/results-network.md
	$(BIN)/python -m benchmarks.network

bench-page: .venv/installed-dev ## the page in Chromium: first paint, scrubbing, memory; rewrites benchmarks/results-page.md
	$(BIN)/python -m benchmarks.page

ban-law: .venv/installed-dev ## measure how long liars last; rewrites docs/ban-law.md (a few minutes)
	$(BIN)/python -m benchmarks.ban_law

promises: .venv/installed-dev ## what a thinking attacker still gets; rewrites docs/promises.md (half an hour on two cores)
	$(BIN)/python -m benchmarks.promises

drop-outs: .venv/installed-dev ## a thousand runs in which peers vanish; rewrites docs/drop-outs.md (about a quarter of an hour)
	$(BIN)/python -m benchmarks.drop_outs

attack-pages: .venv/installed-dev ## try every attack; rewrites the table of docs/attacks/README.md (half an hour on two cores)
	$(BIN)/python -m benchmarks.attack_pages

attack-studies: .venv/installed-dev ## how long liars last, radius; rewrites docs/attacks/README.md (an hour on two cores)
	$(BIN)/python -m benchmarks.attack_studies

lab-pages: .venv/installed-dev ## ranking in docs/results/README.md from results/matrix, which troth lab run matrix makes (an hour on two cores)
	$(BIN)/python -m benchmarks.lab_pages results/matrix

codes-page: .venv/installed-dev ## the table of codes and local steps in docs/results/README.md, from docs/results/codes
	$(BIN)/python -m benchmarks.codes_page

paper-page: .venv/installed-dev ## tables of docs/results/paper.md, from the results that lie beside it
	$(BIN)/python -m benchmarks.paper_page

fuzz: .venv/installed-dev ## a million hostile inputs for every decoder that sees peers' bytes (some minutes on two cores)
	$(BIN)/python -m tests.fuzz

audit-flips: .venv/installed-dev ## flip 500 bits in a peer's folder; the audit finds each (some minutes)
	$(BIN)/python -m tests.audit.flips

nettest: .venv/installed-libp2p ## real peers on networks that hurt (as root, with iproute2 and nftables; a quarter of an hour)
	$(BIN)/python -m pytest -m 'not slow_docs' tests/nettest --durations=0

.venv/installed-libp2p: .venv/installed-dev
	@echo "Installing libp2p …"
	$(install) --editable '.[libp2p]'
	@touch $@

vectors: .venv/installed-dev ## regenerate the golden vectors and the list of public names, after a deliberate change only
	$(BIN)/python -m tests.vectors
	$(BIN)/python -m tests.api.public_names

clean: ## remove what make made
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
