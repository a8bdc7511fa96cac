/* server_absent.c - in the place of server.c where the header of libmicrohttpd was not there to build with. */
#ifndef HAVE_MICROHTTPD
#include "live/server.h"

#include <unistd.h>

status server_check(void) {
    return ERR(ERR_INPUT, "the live page needs libmicrohttpd, and this ralo was built without it; "
                          "run: apt-get install libmicrohttpd-dev && make");
}

status server_open(server **out, int socket, bool is_ipv6, board *b, const gate *g) {
    close(socket);
    return server_check();
}

void server_tick(server *s) {}
void server_close(server *s) {}
void server_wake(void *context, void *connection) {}
#endif
