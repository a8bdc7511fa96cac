#!/bin/bash
# browser_live.sh - the live page in a real browser (browser_live.py says what is looked at). `make test-browser` installs a browser and runs
# this; where none starts it is skipped. RALO_BROWSER names another one, RALO_SCREENSHOTS a directory that keeps pictures.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../harness/check.sh"
need python3
python3 "$here/devtools.py" || exit $?
"$RALO" train --live 1.2.3.4.5:80 >out 2>err </dev/null
! grep -q 'apt-get install libmicrohttpd' err || { cat err; exit 77; }
unset RALO_LIVE_TOKEN
RALO=$RALO python3 "$here/browser_live.py" || die "browser_live.py"
