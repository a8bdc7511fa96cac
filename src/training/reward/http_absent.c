/* http_absent.c - in the place of http.c where libcurl's header was not there to build with. */
#ifndef HAVE_CURL
#include "reward/kind.h"

static status http_open(void **self, const reward_options *o) {
    return ERR(
        ERR_INPUT,
        "reward.list: found http, but this ralo was built without libcurl; install libcurl4-openssl-dev and build "
        "again, or use reward.program");
}

const reward_kind reward_kind_HTTP = {.open = http_open};
#endif
