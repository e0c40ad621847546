# The commands of a person or of a build server. `make demo` and `make test` need nothing beforehand
# but git, make and Rust 1.95 on Debian 12: they install the rest, say what, and ask nothing.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test build check fuzz bench clean

# Through sudo, cargo is the one of the person who called it.
ifneq ($(SUDO_USER),)
ifeq ($(shell command -v cargo),)
SUDO_HOME := $(shell getent passwd $(SUDO_USER) | cut -d: -f6)
export PATH := $(PATH):$(SUDO_HOME)/.cargo/bin
export RUSTUP_HOME ?= $(SUDO_HOME)/.rustup
endif
endif

TARGET := $(or $(CARGO_TARGET_DIR),target)
TRUNKLINE := $(TARGET)/release/trunkline
# Options of the demo: make demo DEMO="--link rate=51.84Mbit,delay=125ms"
DEMO ?=
# Seconds for each fuzz target: make fuzz SECONDS_EACH=600
SECONDS_EACH ?= 60

help: ## lists these targets
	@grep -E '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 14

demo: ## installs what is missing, builds, and shows two sites with and without Trunkline
	@scripts/install.sh demo
	cargo build --release --locked --package trunkline
	$(TRUNKLINE) demo $(DEMO)

test: ## installs what is missing and runs every check and every test
	@scripts/install.sh test
	@scripts/install-cargo-deny.sh
	cargo xtask check
	cargo xtask test

build: ## builds the release binary
	@scripts/install.sh build
	cargo build --release --locked --package trunkline

check: ## formatting, lints, documentation and the project's own rules, without the tests
	cargo xtask check

fuzz: ## runs each fuzz target for SECONDS_EACH seconds (needs a nightly toolchain and cargo-fuzz)
	scripts/fuzz.sh $(SECONDS_EACH)

bench: ## what this machine can do
	cargo bench --workspace --locked

clean: ## removes what was built
	cargo clean
