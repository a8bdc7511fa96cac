#!/bin/bash
# cli_install.sh - what `make install` leaves is enough: examples/ are built against it alone, with pkg-config, shared and
# static, and do what the program does; only ralo_* is visible; uninstall leaves nothing. RALO_BUILD is the build
# directory, RALO_SOURCE the source's, CC the compiler.
: "${RALO_BUILD:?}" "${RALO_SOURCE:?}"
RALO=$RALO_BUILD/ralo
. "$(dirname "$0")/../harness/check.sh"
CC=${CC:-cc}
for tool in cmake pkg-config nm "$CC"; do need "$tool"; done
sanitize=${RALO_SANITIZE:+-fsanitize=$RALO_SANITIZE}

# ---- install under a DESTDIR, then move the tree: nothing in it knows where it was meant to lie
DESTDIR=$work/stage cmake --install "$RALO_BUILD" --prefix /opt/ralo >install.log 2>&1 || die "install: $(tail -n 3 install.log)"
(cd stage/opt/ralo && find . -type f -o -type l | sed 's|^\./||' | LC_ALL=C sort) >installed
absent=none # the plug-in is installed where it was built
[ -e stage/opt/ralo/lib/libralo-cuda.so ] || absent=lib/libralo-cuda.so
LC_ALL=C sort "$RALO_BUILD/installed.txt" | grep -v -x "$absent" | cmp - installed || fail "the list of uninstall is not what was installed"
mv stage/opt/ralo prefix
prefix=$work/prefix
others=${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig$others
unset PKG_CONFIG_SYSROOT_DIR # it would bend our own paths too
version=$(sed -n 's/^#define RALO_VERSION "\(.*\)"/\1/p' "$prefix/include/ralo.h")
[ "$(pkg-config --modversion ralo)" = "$version" ] || fail "ralo.pc and ralo.h name different versions"
[ "$("$prefix/bin/ralo" --version)" = "ralo $version" ] || fail "ralo --version and ralo.h name different versions"
[ "$(readlink -f "$prefix/lib/libralo.so")" = "$prefix/lib/libralo.so.$version" ] || fail "libralo.so leads elsewhere"
"$RALO_BUILD/ralo" help man | cmp - "$prefix/share/man/man1/ralo.1" || fail "the man page is not the program's"
"$RALO_BUILD/ralo" completion bash | cmp - "$prefix/share/bash-completion/completions/ralo" || fail "the bash completion"
"$RALO_BUILD/ralo" completion zsh | cmp - "$prefix/share/zsh/site-functions/_ralo" || fail "the zsh completion"

# ---- symbols: every function of the header, and nothing else
sed -n 's/^RALO_API .*[ *]\(ralo_[a-z_]*\)(.*/\1/p' "$prefix/include/ralo.h" | sort >declared
[ "$(wc -l <declared)" -gt 20 ] || fail "only $(wc -l <declared) functions in ralo.h"
nm -D --defined-only "$prefix/lib/libralo.so" | awk '$2 != "A" { print $3 }' | sort >shown
sed 's/$/@@RALO_0/' declared | diff - shown || fail "libralo.so does not show what ralo.h declares"
nm -g --defined-only "$prefix/lib/libralo.a" | awk 'NF == 3 { print $3 }' | sort | diff declared - ||
    fail "libralo.a does not show what ralo.h declares"
if command -v readelf >/dev/null; then
    readelf -d "$prefix/lib/libralo.so" | grep -q 'SONAME.*\[libralo.so.0\]' || fail "the SONAME is not libralo.so.0"
fi

# ---- loaded while a program runs: from C, and by Python's ctypes. A library whose thread-local data is large has no room in
# what the C library keeps free for such libraries (1664 bytes of glibc for all of them together).
if command -v readelf >/dev/null && [ -z "$sanitize" ]; then
    tls=$(($(readelf -lW "$prefix/lib/libralo.so" | awk '$1 == "TLS" { print $6 }')))
    [ "$tls" -le 256 ] || fail "libralo.so has $tls bytes of thread-local data, expected at most 256"
fi
cat >load.c <<'C'
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    void *library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*open)(void **, const char *);
    const char *(*message)(void);
    *(void **)&open = dlsym(library, "ralo_tokenizer_open");
    *(void **)&message = dlsym(library, "ralo_error_message");
    void *tokenizer = NULL;
    if (!open || !message || open(&tokenizer, "byte") != 0 || open(&tokenizer, "/nowhere") == 0) return 2;
    return strstr(message(), "/nowhere") ? 0 : 3;
}
C
# shellcheck disable=SC2086
$CC -std=c11 -Wall -Wextra -Werror $sanitize load.c -o load -ldl && ./load "$prefix/lib/libralo.so" >log 2>&1 ||
    fail "libralo.so is not loaded by dlopen: $(cat log)"
if command -v python3 >/dev/null && [ -z "$sanitize" ]; then # a sanitizer's library must be loaded first
    python3 - "$prefix/lib/libralo.so" >log 2>&1 <<'PY' || fail "libralo.so is not loaded by ctypes: $(tail -n 1 log)"
import ctypes, sys, threading
ralo = ctypes.CDLL(sys.argv[1])
ralo.ralo_error_message.restype = ctypes.c_char_p
out = ctypes.c_void_p()
said = []
def refuse(name):
    assert ralo.ralo_tokenizer_open(ctypes.byref(out), name) != 0
    said.append(ralo.ralo_error_message())
threads = [threading.Thread(target=refuse, args=(b"/nowhere/%d" % i,)) for i in range(8)]
for t in threads: t.start()
for t in threads: t.join()
assert all(any(b"/nowhere/%d'" % i in text for text in said) for i in range(8)), said
PY
fi

# ---- the Python module of the same tree, which finds the library that lies beside it
if command -v python3 >/dev/null && [ -z "$sanitize" ]; then
    python=$(pkg-config --variable=pythondir ralo)
    (cd / && env -u RALO_LIBRARY -u LD_LIBRARY_PATH PYTHONPATH="$python" PYTHONDONTWRITEBYTECODE=1 python3 -c '
import ralo, sys
assert ralo.__file__.startswith(sys.argv[1]), ralo.__file__
assert ralo._library.places()[0] == sys.argv[1] + "/lib/libralo.so.0", ralo._library.places()
assert ralo.plan(preset="test-llama")["fits"]' "$prefix") >log 2>&1 || fail "the installed Python module: $(tail -n 1 log)"
fi

# ---- the header stands alone, in C from 99 on and in C++
for standard in c99 c11 c17; do
    echo '#include <ralo.h>' >alone.c
    # shellcheck disable=SC2046 # flags are several words
    $CC -std=$standard -pedantic -Wall -Wextra -Werror $(pkg-config --cflags ralo) -fsyntax-only alone.c ||
        fail "ralo.h does not compile as $standard"
done
if command -v g++ >/dev/null; then
    cat >host.cpp <<'CPP'
#include <ralo.h>
#include <cstdio>
static void plan_open() {} // names of the rooms are ours to use
int main() {
    plan_open();
    ralo_settings *s = nullptr;
    ralo_plan *p = nullptr;
    uint64_t n = 0;
    ralo_step step{};
    if (ralo_settings_new(&s) != RALO_OK || ralo_settings_set(s, "model.preset", "test-llama") != RALO_OK ||
        ralo_plan_open(&p, s) != RALO_OK || ralo_plan_bytes(p, "device", nullptr, &n) != RALO_OK) {
        std::fprintf(stderr, "%s\n", ralo_error_message());
        return 1;
    }
    std::printf("%llu\n", static_cast<unsigned long long>(n + step.tokens));
    ralo_plan_close(p);
    ralo_settings_free(s);
}
CPP
    # shellcheck disable=SC2046,SC2086
    g++ -std=c++11 -pedantic -Wall -Wextra -Werror $sanitize host.cpp -o host $(pkg-config --cflags --libs ralo) &&
        planned=$(LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ./host) || fail "a C++ program does not build and run"
    "$prefix/bin/ralo" plan --preset test-llama --json 2>/dev/null | grep -q "\"device\": {\"planned\": ${planned:-none}}" ||
        fail "the C++ program plans ${planned:-nothing}, unlike ralo plan"
else
    echo "g++ not found: the header was not tried as C++"
fi

# ---- the examples, shared and static. Static: the same prefix without the shared library.
cp -r prefix static && rm static/lib/libralo.so*
build() { # NAME KIND FLAGS...
    local name=$1 kind=$2
    shift 2
    # shellcheck disable=SC2046,SC2086
    $CC -std=c11 -Wall -Wextra -Werror $sanitize "$RALO_SOURCE/examples/$name.c" -o "$name-$kind" \
        $(PKG_CONFIG_PATH=$work/$kind/lib/pkgconfig$others pkg-config --cflags --libs "$@" ralo) || die "$name, $kind, does not build"
}
mv prefix shared && export PKG_CONFIG_PATH=$work/shared/lib/pkgconfig$others # a moved tree still describes itself
for example in $(grep -l "include <ralo.h>\|include \"ralo.h\"" "$RALO_SOURCE"/examples/*.c); do
    name=$(basename "$example" .c)
    build "$name" shared
    build "$name" static --static
done
export LD_LIBRARY_PATH=$work/shared/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if command -v ldd >/dev/null && [ -z "$sanitize" ]; then
    ldd finetune-shared | grep -q "libralo.so.0 => $work/shared" || fail "finetune-shared does not use libralo.so.0"
    ! ldd finetune-static | grep -q libralo || fail "finetune-static uses a shared libralo"
fi

# ---- the guide's line for a PREFIX of one's own is enough to build and to start
mkdir home && ln -s "$work/shared" home/.local
line=$(grep '^    export .*PKG_CONFIG_PATH=' "$RALO_SOURCE/docs/guide/scripting.md") || fail "the guide does not say how a program finds libralo"
(
    libraries=${LD_LIBRARY_PATH#"$work/shared/lib"}
    unset PKG_CONFIG_PATH LD_LIBRARY_PATH
    export HOME=$work/home
    eval "$line"
    export PKG_CONFIG_PATH=$PKG_CONFIG_PATH$others LD_LIBRARY_PATH=$LD_LIBRARY_PATH$libraries
    # shellcheck disable=SC2046,SC2086
    $CC $sanitize "$RALO_SOURCE/examples/generate.c" -o guided $(pkg-config --cflags --libs ralo) && ./guided 2>&1 | grep -q '^usage: generate'
) || fail "the guide's line is not enough: $line"

# ---- finetune: a preset on a built-in source; the loss falls, and shared, static and `ralo train` end alike
settings=(data.seq_len=48 train.micro_batch=4 train.steps=30 train.warmup=3 train.lr=0.01 train.eval_rows=8
    train.problems=0 run.threads=2)
loss() { sed -n "s/^step $2  loss \([0-9.]*\) .*/\1/p" "$1"; }
falls() { awk -v a="$(loss "$1" 1)" -v b="$(loss "$1" "$2")" -v share="$3" 'BEGIN { exit !(a > 0 && b > 0 && b < share * a) }'; }
hash_of() { sed -n 's/.*param_hash \([0-9a-f]*\).*/\1/p' "$1"; }
for kind in shared static; do
    ./finetune-$kind test-llama builtin:grammar out-$kind "${settings[@]}" >$kind.log 2>$kind.err ||
        die "finetune-$kind: $(cat $kind.err)"
    falls $kind.log 30 0.8 || fail "finetune-$kind: the loss went from $(loss $kind.log 1) to $(loss $kind.log 30)"
    [ -f out-$kind/run/checkpoints/step-00000030/checkpoint.json ] || fail "finetune-$kind left no checkpoint"
    [ -f out-$kind/model/model.safetensors ] || fail "finetune-$kind exported nothing"
done
sets=()
for setting in "${settings[@]}"; do sets+=(--set "$setting"); done
shared/bin/ralo train --preset test-llama --set data.source=builtin:grammar "${sets[@]}" --set run.dir=program 2>program.log ||
    die "ralo train: $(tail -n 1 program.log)"
hash=$(hash_of program.log)
[ -n "$hash" ] && [ "$(hash_of shared.log)" = "$hash" ] && [ "$(hash_of static.log)" = "$hash" ] ||
    fail "parameters differ: $(hash_of shared.log) shared, $(hash_of static.log) static, $hash by ralo train"

# ---- finetune: the directory it exported, on a text file
for i in $(seq 400); do echo "line $i of a text that says line $i of a text"; done >text.txt
./finetune-shared out-shared/model text.txt tuned "${settings[@]}" >tuned.log 2>tuned.err || die "finetune a directory: $(cat tuned.err)"
grep -q "weights of out-shared/model loaded" tuned.err || fail "the weights of the directory were not told to be loaded"
falls tuned.log 30 0.8 || fail "finetune a directory: the loss went from $(loss tuned.log 1) to $(loss tuned.log 30)"
./finetune-shared nonsense builtin:grammar never >log 2>err && fail "an unknown preset was taken"
grep -q "model.preset 'nonsense' is not known" err || fail "an unknown preset: $(cat err)"
[ ! -e never ] || fail "a refused run made its directory"

# ---- generate: the completions of `ralo generate`, from the exported directory, greedy and sampled
for temperature in 0 0.8; do
    for kind in shared static; do
        ./generate-$kind out-shared/model 24 $temperature "the cat" "a" >$kind.out 2>err || die "generate-$kind: $(cat err)"
        shared/bin/ralo generate --model out-shared/model --max-new 24 --temperature $temperature --prompt "the cat" \
            --prompt a >program.out 2>err || die "ralo generate: $(cat err)"
        [ "$(grep -c '^--- ' $kind.out)" = 2 ] || fail "generate-$kind: not two completions"
        cmp <(grep -av '^--- ' $kind.out) <(grep -av '^--- ' program.out) ||
            fail "generate-$kind at temperature $temperature is not what ralo generate gives"
    done
    cp shared.out shared-$temperature.out
done
! cmp -s shared-0.out shared-0.8.out || fail "sampling gives the greedy completions"
./generate-shared /nowhere 1 0 a >log 2>err && fail "a model that is not there was taken"
grep -q /nowhere err || fail "a model that is not there: $(cat err)"

# ---- uninstall takes away all that install put there, and nothing else
DESTDIR=$work/again cmake --install "$RALO_BUILD" --prefix /opt/ralo >install.log 2>&1
touch again/opt/ralo/bin/other
mkdir again/opt/ralo/share/ralo/python/ralo/__pycache__
touch again/opt/ralo/share/ralo/python/ralo/__pycache__/__init__.cpython-311.pyc # as Python leaves it
DESTDIR=$work/again cmake -DLIST="$RALO_BUILD/installed.txt" -DPREFIX=/opt/ralo -P "$RALO_SOURCE/cmake/uninstall.cmake" >log 2>&1 ||
    fail "uninstall: $(cat log)"
[ "$(find again ! -type d)" = again/opt/ralo/bin/other ] || fail "after uninstall: $(find again ! -type d)"

# ---- the lines of `make`, for a PREFIX with a space that is not whole
lines() { make -n -C "$RALO_SOURCE" BUILD="$RALO_BUILD" "$1" DESTDIR="$work/a stage" PREFIX="../my place" | grep "cmake.*$2"; }
if command -v make >/dev/null; then
    mkdir here
    (cd here && eval "$(lines install --install)") >log 2>&1 && [ -x "a stage$work/my place/bin/ralo" ] || fail "make install with a space: $(cat log)"
    (cd here && eval "$(lines uninstall installed.txt | sed "s|cmake/uninstall|\"$RALO_SOURCE\"/cmake/uninstall|")") >log 2>&1 &&
        [ -z "$(find "a stage" ! -type d)" ] || fail "make uninstall with a space: $(cat log)"
fi
finish "installed, linked, run and removed"
