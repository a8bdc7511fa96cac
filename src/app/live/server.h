#pragma once
/* server.h - private to live: HTTP over libmicrohttpd. Where that was not there to build with, server_absent.c refuses. */
#include "live/board.h"
#include "live/gate.h"

typedef struct server server;
status server_check(void); /* the library is there */
/* Takes the listening socket over, also when it fails. board and gate outlive it. Its thread is a child of the caller's, and has its
 * priority and blocked signals. */
status server_open(server **out, int socket, bool is_ipv6, board *b, const gate *g);
void server_tick(server *s); /* from time to time: ends connections that are late with their request */
/* Clients of the stream get its last messages (stream_end came before), for at most a second; then all connections are closed. */
void server_close(server *s);
/* For stream_init: the connection has something to send. context: the server. */
void server_wake(void *context, void *connection);
