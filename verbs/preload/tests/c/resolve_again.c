/* An address cannot be resolved because the library can start no thread; once threads are allowed, the identifier
 * works again. There is no peer. */
#include "check.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <sys/resource.h>
#include <unistd.h>

int main(void)
{
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(7471)};
    inet_pton(AF_INET, "192.168.179.2", &peer.sin_addr);
    /* Threads of root are not limited. */
    if (geteuid() == 0)
        CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    NEED(channel);
    struct rdma_cm_id *id = NULL;
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    NEED(id);

    struct rlimit usual, none;
    CHECK(getrlimit(RLIMIT_NPROC, &usual) == 0);
    none = usual;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    errno = 0;
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 100) == -1 && errno == EAGAIN);
    CHECK(setrlimit(RLIMIT_NPROC, &usual) == 0);

    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 100) == 0);
    struct rdma_cm_event *event = NULL;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    NEED(event);
    CHECK(event->id == id && event->event == RDMA_CM_EVENT_ADDR_ERROR);
    rdma_ack_cm_event(event);
    CHECK(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
    return verdict();
}
