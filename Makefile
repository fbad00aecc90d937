# What one does with wedjat; `make help` lists it. CI calls these and nothing else.
.DEFAULT_GOAL := help
.PHONY: help demo fabric test test-dpdk test-units test-processes test-beside test-portable lint book doc bench bench-cores bench-host bench-lines
.PHONY: bench-library bench-preempt counts miri reference figures soak test-nics histories bench-cosched bench-sockets test-prefix attack install uninstall deb publish-check deps clean

CARGO ?= cargo
# All there is, the RocksDB workload with it.
ALL := --workspace --features wedjat-testbed/rocksdb

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

deps: ## check for compiler, libclang, libdpdk and Rust; install what the distribution has
	@scripts/deps.sh build

demo: deps ## build, run the leaf under three policies and three loads, write demo-report/; CLOCK=real for this machine's time
	$(CARGO) build --locked --release -p wedjat -p wedjat-testbed
	target=$${CARGO_TARGET_DIR:-target}; "$$target/release/wedjat-testbed" demo $(if $(CLOCK),--clock $(CLOCK)) $(DEMO)

fabric: ## a fabric in emulated time, of which parts are killed, cut off, added and drained; write fabric-report/
	$(CARGO) build --locked --release --no-default-features --features wedjat/cli -p wedjat -p wedjat-testbed
	target=$${CARGO_TARGET_DIR:-target}; "$$target/release/wedjat-testbed" fabric --report fabric-report $(FABRIC)

histories: ## inject all faults into controllers, SECONDS (300) over etcd and as long with a file; exit status 1 if an answer is not linearizable
	$(CARGO) build --locked --release --no-default-features --features wedjat/cli -p wedjat -p wedjat-testbed
	target=$${CARGO_TARGET_DIR:-target}; for store in etcd file; do \
		"$$target/release/wedjat-testbed" histories --store $$store --seconds $(or $(SECONDS),300) $(HISTORIES) || exit; done

# Tests of processes leave most of a second CPU idle. The other tests and the lints fill it, at
# the lowest priority. They begin some seconds later, because a build that runs first would hold cargo's lock against the tests.
test: test-units ## all tests and the lints
	@beside=$$(mktemp); { sleep 5; nice -n 19 $(MAKE) test-beside lint >"$$beside" 2>&1; } & \
	$(MAKE) test-processes; status=$$?; wait $$! || status=1; cat "$$beside"; rm "$$beside"; exit $$status

test-dpdk: test-units test-processes test-beside ## the tests with DPDK ports and RocksDB

# Builds the other tests, too, so that no later build waits for a lock.
test-units:
	@scripts/deps.sh test
	$(CARGO) test --locked $(ALL) --lib --bins
	$(CARGO) test --locked $(ALL) --test '*' --no-run --quiet

# Integration tests that start no polling process and reserve no hugepages: in emulated time, under valgrind, or of packages.
# A DPDK process of another test would see such hugepages, and find them taken a moment later.
BESIDE := advise attack bench_lines fabric learner lockstep lockstep_fabric lockstep_leaves packages simulator slices soak
TESTS := $(sort $(notdir $(basename $(wildcard tests/*.rs */tests/*.rs))))

# They start DPDK processes that poll, so they run one at a time.
test-processes:
	$(CARGO) test --locked $(ALL) $(addprefix --test ,$(filter-out $(BESIDE),$(TESTS))) -- --test-threads=1
	$(CARGO) test --locked $(ALL) --doc

test-beside:
	$(CARGO) test --locked $(ALL) $(addprefix --test ,$(BESIDE)) -- --test-threads=1

# DPDK=/opt/dpdk-24.11
test-prefix: ## build against the DPDK installed below the prefix DPDK, and run the tests of its virtual devices
	scripts/dpdk.sh "$(DPDK)"

# `make test` runs the same tests with DPDK, and clippy builds the library without it. This builds 55 crates anew.
test-portable: ## the tests of the library, built without DPDK
	$(CARGO) test --locked -p wedjat --no-default-features --features wedjat/auth --test embed

lint: ## formatting, clippy and rustdoc, with DPDK and without; warnings are errors
	@scripts/deps.sh test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked $(ALL) --all-targets -- -D warnings
	$(CARGO) clippy --locked -p wedjat --no-default-features --lib -- -D warnings
	$(CARGO) clippy --locked -p wedjat -p wedjat-testbed --no-default-features --features wedjat/cli -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked $(ALL) --no-deps --document-private-items

counts: ## counts of the design: files that a change touches, types for a concept, lines of code
	$(CARGO) test --locked -p wedjat --test tidy counts_of_the_design -- --show-output

book: ## the documents as a book (mdBook), in OUT (book)
	scripts/book.sh "$(or $(OUT),book)"

doc: deps ## the API's documentation, target/doc/wedjat/index.html
	$(CARGO) doc --locked --workspace --no-deps

attack: deps ## attack leaf, agent and library for a few minutes; exit status 1 if anything fell
	$(CARGO) build --locked --release
	target=$${CARGO_TARGET_DIR:-target}; "$$target/release/wedjat-testbed" attack $(ATTACK)

bench: ## compare with dpdk-testpmd on this machine, write bench-report/
	@scripts/deps.sh bench
	$(CARGO) build --locked --release
	target=$${CARGO_TARGET_DIR:-target}; scripts/bench.py --bin "$$target/release" $(BENCH)

bench-cores: ## compare one core and two with dpdk-testpmd over two ports, with replies; write bench-report/bench-cores.json
	@scripts/deps.sh bench
	$(CARGO) build --locked --release -p wedjat -p wedjat-testbed
	target=$${CARGO_TARGET_DIR:-target}; scripts/bench-cores.py --bin "$$target/release" $(BENCH)

bench-sockets: ## compare the leaf on AF_PACKET with nginx's balancing of UDP, over kernel sockets; as root, some three minutes
	@scripts/deps.sh bench
	$(CARGO) build --locked --release -p wedjat
	target=$${CARGO_TARGET_DIR:-target}; scripts/bench-sockets.py --bin "$$target/release" $(BENCH)

bench-host: ## what handing a task to a worker core costs, beside DPDK's rings, distributor and event devices; two cores
	@scripts/deps.sh bench
	$(CARGO) build --locked --release -p wedjat-testbed
	target=$${CARGO_TARGET_DIR:-target}; "$$target/release/wedjat-testbed" bench-host $(BENCH)

bench-preempt: ## what sharing a worker's core among tasks does to short ones and costs; RocksDB, two CPUs, some three minutes
	@scripts/deps.sh bench
	$(CARGO) build --locked --release --features rocksdb -p wedjat-testbed
	target=$${CARGO_TARGET_DIR:-target}; "$$target/release/wedjat-testbed" bench-preempt $(BENCH)

bench-cosched: ## what a batch on a worker's core costs and gets, by way of holding it; two CPUs, cgroups, a quarter of an hour; bench-report/
	@scripts/deps.sh bench
	$(CARGO) build --locked --release -p wedjat-testbed
	target=$${CARGO_TARGET_DIR:-target}; "$$target/release/wedjat-testbed" bench-cosched $(BENCH)

# Files, futexes, signals and loom's threads are beyond miri; the tests that need them are left out there. Workers that die in
# tests leak their memory.
miri: ## the rings' memory under miri, if the nightly toolchain has it
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
		MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks" $(CARGO) +nightly miri test -p wedjat-core --no-default-features --lib -- \
			ring:: worker:: agent::names --skip io::memory; \
	else echo "SKIPPED miri: cargo +nightly miri is not installed"; fi

bench-library: ## compare a call of the C library with the same from Rust
	$(CARGO) build --locked --release --package wedjat-capi --lib --example cost
	target=$${CARGO_TARGET_DIR:-target}; scripts/bench-library.py --built "$$target/release" $(BENCH)

# The simulator needs no DPDK.
SIM := $(CARGO) run --locked --release --no-default-features -p wedjat-testbed --

reference: ## hold the simulator against results found elsewhere, and leaf processes against the simulator, all of them
	$(SIM) reference
	$(CARGO) build --locked --release -p wedjat -p wedjat-testbed
	target=$${CARGO_TARGET_DIR:-target}; "$$target/release/wedjat-testbed" lockstep --compare --policy all --load 0.5,0.9,0.95

soak: ## run SEEDS seeds of faults (1000) in emulated time, on a leaf and two agents or as SOAK says (--spines 2); exit status 1 if one violates what must be so
	$(SIM) lockstep --soak $(or $(SEEDS),1000) $(SOAK)

test-nics: ## run a leaf on emulated NICs in QEMU, without KVM; needs root; write nics-report.json; NICS="--models virtio"
	@scripts/deps.sh build nics
	$(CARGO) build --locked -p wedjat
	python3 testbed/lab/nics/run.py --report nics-report.json $(NICS)

bench-lines: ## cache lines that move between dispatcher cores, a packet; with valgrind, about a quarter of an hour
	$(SIM) bench-lines $(BENCH)

figures: ## make the papers' figures again, in figures/; FULL=1 for runs ten times as long
	$(SIM) figures $(if $(FULL),--full)

# Where to; PROFILE=dev installs what tests were built from.
export PREFIX ?= /usr/local
export DESTDIR ?=
export LIBDIR ?= lib
PROFILE ?= release
BUILT = $${CARGO_TARGET_DIR:-target}/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

# FEATURES=wedjat-testbed/rocksdb has the RocksDB workload as well. Of the whole workspace at once, so that commands and C library are
# made of the same crates, which are built once: with the features that they have in tests, whose builds serve as well. With dev the
# tests belong to it: without them, cargo builds crates of procedural macros otherwise, and so all that depend on them again.
BUILD = $(CARGO) build --locked --profile $(PROFILE) --workspace --lib --bins $(if $(filter dev,$(PROFILE)),--tests) \
	$(if $(FEATURES),--features $(FEATURES))

install: deps ## commands, C library, headers, manual pages, completions, units into PREFIX (/usr/local), below DESTDIR
	$(BUILD)
	scripts/install.sh install "$(BUILT)"

deb: deps ## Debian packages of what `install` installs, in OUT (.): wedjat, libwedjat0, libwedjat-dev, wedjat-dbg
	$(BUILD)
	scripts/deb.sh "$(BUILT)" "$(or $(OUT),.)"

publish-check: deps ## package the crates for crates.io and build each from its package; needs the registry, uploads nothing
	$(CARGO) publish --locked --workspace --dry-run

uninstall: ## remove from PREFIX what was installed there
	scripts/install.sh uninstall

clean: ## remove what the others made
	$(CARGO) clean
	rm -rf book demo-report fabric-report bench-report figures wedjat*_*.deb libwedjat*_*.deb
