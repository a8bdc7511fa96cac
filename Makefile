# The face of the build; CMake does the work. `make help` lists what there is.
#
#   make SANITIZE=address test     in build-address; also undefined, thread, address,undefined
#   make BUILD=/tmp/ralo JOBS=4    another build directory, another number of compile jobs
#   make PACKAGES=no test          do not look at packages (also for run)
#   make RALO_CUDA_ARCHS=all       the CUDA backend for every GPU that a release supports; also 90, or "80;90"
#   make fuzz FUZZ_SECONDS=60 FUZZ_TARGET=yaml    one fuzz target for a minute
#   make soak SOAK_KILLS=50 SOAK_PARTS=kills       fifty kills at random moments

comma := ,
SANITIZE ?=
BUILD ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Tests start threads of their own, so few run side by side.
TEST_JOBS ?= 2
PREFIX ?= /usr/local
# Not $(abspath): it would take a name with a space for two.
PREFIX_PATH = "$$(realpath -ms -- "$(PREFIX)")"
BUILD_PATH = "$$(realpath -ms -- "$(BUILD)")"
PACKAGES ?= yes
RALO_CUDA_ARCHS ?=
# gcc 12 on arm64 spends four seconds per process looking for leaks; add detect_leaks=0 where that is too long.
export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1
SOURCES = find $(wildcard src include tests bench examples) -name '*.[ch]'

# Where `make fuzz` builds, keeps what it learned and what it found; how long for each target; which one (all).
FUZZ_BUILD ?= build-fuzz
FUZZ_SECONDS ?= 600
FUZZ_TARGET ?=
# What `make soak` does: tests/soak/run.
export SOAK_KILLS SOAK_EXECUTIONS SOAK_STEPS SOAK_PARTS SOAK_SEED SOAK_JOBS SOAK_DIR SOAK_DEVICE SOAK_LOG

.PHONY: build run check test test-gpu test-browser sanitize-gpu matrix fuzz bench format reference examples includes deps packages configure install uninstall clean help
.NOTPARALLEL:

build: configure ## build build/ralo (the default)
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target program

run: packages configure ## install missing packages, build, train the built-in default
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target ralo
	"$(BUILD)/ralo" train

check: configure ## build and run the unit tests only: for while you edit (under a minute of tests on 2 cores)
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target unit-tests
	@ctest --test-dir "$(BUILD)" --output-on-failure --no-tests=error -j $(TEST_JOBS) -L unit

test: packages configure ## install missing packages, build, run all tests but those that need a GPU
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target tests
	@ctest --test-dir "$(BUILD)" --output-on-failure --no-tests=error -j $(TEST_JOBS) -LE gpu

test-gpu: packages configure ## build, run the tests that prove the GPU
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target tests program
	@ctest --test-dir "$(BUILD)" --output-on-failure --no-tests=error -L gpu

test-browser: packages configure ## install a browser where there is none, look at the live page with it (RALO_SCREENSHOTS=DIR keeps pictures)
ifeq ($(PACKAGES),yes)
	@tools/install-packages tools/packages-browser.txt || echo "Going on: another browser may be found, or named by RALO_BROWSER."
endif
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target ralo
	@ctest --test-dir "$(BUILD)" --output-on-failure --no-tests=error -L browser

sanitize-gpu: test-gpu ## compute-sanitizer over the op tests on the GPU, test by test: memcheck, racecheck
	@tools/sanitize-gpu "$(BUILD)"

fuzz: ## run the fuzz targets, 600 s each (clang and libclang-rt-*-dev, not in `make deps`)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_TARGET=$(FUZZ_TARGET) JOBS=$(JOBS) tests/fuzz/run $(FUZZ_BUILD)

.PHONY: soak
soak: configure ## kills at random moments, a long run, 10^8 fuzz executions: hours (SOAK_KILLS, SOAK_EXECUTIONS, SOAK_PARTS, SOAK_JOBS)
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target $(if $(filter cuda,$(SOAK_DEVICE)),program,ralo)
	@case "$(or $(SOAK_PARTS),fuzz)" in *fuzz*) FUZZ_SECONDS=0 JOBS=$(JOBS) tests/fuzz/run $(FUZZ_BUILD) ;; esac
	@tests/soak/run "$(BUILD)" $(FUZZ_BUILD)

matrix: configure ## thousands of combinations of memory techniques against the plain run
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target tests
	@RALO_MATRIX=large "$(BUILD)/tests/test_equality"
	@RALO_MATRIX=large "$(BUILD)/tests/test_learning"
	@RALO_MATRIX=large "$(BUILD)/tests/test_extremes"
	@RALO_MATRIX=large RALO=$(BUILD_PATH)/ralo RALO_BUILD=$(BUILD_PATH) bash tests/ranks/cli_zero.sh

bench: configure ## build and run the benchmarks
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target bench
	@RALO=$(BUILD_PATH)/ralo BENCH=$(BUILD_PATH)/bench bench/run

format: ## clang-format over all C files
	@command -v clang-format >/dev/null || { echo "clang-format not found: apt-get install clang-format"; exit 1; }
	$(SOURCES) -exec clang-format -i {} +

reference: configure ## print docs/reference again from the tables of the program and from include/ralo.h
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target ralo
	@"$(BUILD)/ralo" help --reference docs/reference
	@tools/c-api-page include/ralo.h >docs/reference/c-api.md

examples: configure ## run the plans that README and the guides show (a minute), and write what is printed today into them
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target ralo
	@tools/examples "$(BUILD)/ralo"

includes: configure ## check the order of rooms and that headers compile alone
	@cmake --build "$(BUILD)" --target includes

deps: ## install missing packages (Debian, Ubuntu)
	@tools/install-packages

install: configure ## install program, library, header, man page, completions, Python module into PREFIX (/usr/local), under DESTDIR if set
	@cmake --build "$(BUILD)" --parallel $(JOBS) --target public
	@DESTDIR="$(DESTDIR)" cmake --install "$(BUILD)" --prefix $(PREFIX_PATH)

uninstall: configure ## remove what install put there
	@DESTDIR="$(DESTDIR)" cmake -DLIST="$(BUILD)/installed.txt" -DPREFIX=$(PREFIX_PATH) -P cmake/uninstall.cmake

clean: ## remove the build directories
	@for d in "$(BUILD)" build build-*; do if [ -f "$$d/CMakeCache.txt" ]; then echo "rm -r $$d"; rm -r "$$d"; fi; done

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@sed -n 's/^# \(  make .*\)/\1/p' Makefile

packages:
ifeq ($(PACKAGES),yes)
	@tools/install-packages || echo "Going on: the libraries may be found elsewhere."
endif

# Every time: it takes a moment, prints what was found (on stderr, as errors do; the rest is noise) and sees libraries
# that came since. A build directory keeps the generator that it was made with.
configure:
	@command -v cmake >/dev/null || { echo "cmake not found: run 'make deps', or: apt-get install cmake"; exit 1; }
	@generator=; \
	if [ ! -f "$(BUILD)/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator="-G Ninja"; fi; \
	cmake -S . -B "$(BUILD)" $$generator -DRALO_SANITIZE=$(SANITIZE) $(if $(RALO_CUDA_ARCHS),"-DRALO_CUDA_ARCHS=$(RALO_CUDA_ARCHS)") >/dev/null
