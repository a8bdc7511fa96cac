#!/bin/bash
# cli_plugin.sh - the CUDA plug-in is looked for beside the program, however that was started: by its path, by its name in PATH, through
# a link. A file that is no library stands for it, as the message then says that it was found. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
unset RALO_CUDA_PLUGIN
mkdir -p prefix/bin prefix/lib links elsewhere
cp "$RALO" prefix/bin/ralo
echo "no library" >prefix/lib/libralo-cuda.so
ln -s "$work/prefix/bin/ralo" links/ralo
touch elsewhere/ralo # the name of the program is that of a file here
cd elsewhere || exit 1
found() { # WHAT COMMAND...
    local what=$1
    shift
    "$@" train --set run.device=cuda --set train.steps=1 >out 2>err </dev/null && fail "$what: it runs on a GPU"
    grep -q "the CUDA backend does not load: $work/prefix/bin/../lib/libralo-cuda.so" err || fail "$what: $(tail -n 1 err)"
}
found "by its path" "$work/prefix/bin/ralo"
found "by a relative path" ../prefix/bin/ralo
found "through a link" "$work/links/ralo"
PATH=$work/prefix/bin:$PATH found "by its name" ralo
PATH=$work/links:$PATH found "by the name of a link" ralo
finish "the plug-in is found beside the program"
