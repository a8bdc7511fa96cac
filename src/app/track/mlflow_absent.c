/* mlflow_absent.c - in the place of mlflow_http.c and mlflow_rest.c where libcurl's header was not there to build with. */
#ifndef HAVE_CURL
#include "track/mlflow.h"

status mlflow_check(const char *uri, const char *from) {
    if (mlflow_is_file(uri)) return OK;
    return ERR(
        ERR_INPUT,
        "%s: found a server, but this ralo was built without libcurl; apt-get install libcurl4-openssl-dev and build "
        "again",
        from);
}

static status absent_open(void **self, const sink_run *r, json_t *state, json_t **known) {
    return mlflow_check(r->settings->mlflow_uri, "track.mlflow");
}

const mlflow_store mlflow_rest = {.open = absent_open};
#endif
