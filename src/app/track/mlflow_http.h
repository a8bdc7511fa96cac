#pragma once
/* mlflow_http.h - private to track: requests to one MLflow server.
 *
 * Answers are JSON of at most 16 MiB, or nothing. Redirects are not followed. Messages name host and path of a request, never a login. */
#include "track/sink.h"

typedef struct mlflow_http mlflow_http;
status mlflow_http_open(mlflow_http **out, const sink_run *r);
void mlflow_http_close(mlflow_http *h);
/* path: after the URI, "/api/2.0/mlflow/runs/create?...". body: NULL: GET; else POST. answer: an object, the caller's; NULL where none is
 * wanted. missing: NULL, or set where the server says that there is no such thing, which then is no error. */
status mlflow_http_json(mlflow_http *h, const char *path, const json_t *body, json_t **answer, bool *missing);
status mlflow_http_put(mlflow_http *h, const char *path, int fd, uint64_t n_bytes);
