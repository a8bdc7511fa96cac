#pragma once
/* http_server.h - an HTTP server on loopback that is a thread of the test: one connection at a time, and it answers as the test says. */
#include "base/base.h"

/* A whole request, whose body begins at `body`. False: the connection is over. */
typedef bool (*http_serve)(int fd, const strbuf *request, size_t body);

int http_server_open(http_serve serve); /* not 0: it could not be; errno */
int http_server_close(void);
const char *http_server_url(void); /* http://127.0.0.1:PORT */
bool http_server_ending(void);     /* for answers without end */

/* `headers` are lines that each end in \r\n, or "". False: the client has gone. */
bool http_say(int fd, const char *status, const char *headers, const char *body);
bool http_break_off(int fd);       /* in the middle of an answer; false, the connection is over */
bool http_wait_for_hangup(int fd); /* the client's; says nothing. false */
