/* A program that finds its device as NCCL does: it loads libibverbs at run time, takes every function in version
 * IBVERBS_1.1 and later ones where they exist, waits for asynchronous events on a thread of its own, and probes for
 * DMA buffers with an invalid descriptor. Source: NVIDIA/nccl, misc/ibvsymbols.cc and transport/net_ib. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#define PORT 1
#define DEPTH 256

static void *verbs;

static void *find(const char *name, const char *version)
{
    void *function = dlvsym(verbs, name, version);
    if (!function) {
        failures++;
        printf("%s is not found in version %s: %s\n", name, version, dlerror());
        exit(verdict());
    }
    return function;
}

/* The function `name`, with the type that the headers declare. */
#define FIND(name) ((__typeof__(&(name)))find(#name, "IBVERBS_1.1"))
#define FIND_IN(version, name) ((__typeof__(&(name)))find(#name, version))

static void *wait_for_events(void *context)
{
    struct ibv_async_event event;
    while (!FIND(ibv_get_async_event)(context, &event))
        FIND(ibv_ack_async_event)(&event);
    return NULL;
}

static struct ibv_qp *ready_pair(struct ibv_pd *pd, struct ibv_cq *cq, union ibv_gid *gid, enum ibv_mtu mtu)
{
    struct ibv_qp_init_attr wanted = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 2 * DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    struct ibv_qp *qp = FIND(ibv_create_qp)(pd, &wanted);
    NEED(qp);
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = PORT,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
    };
    RETURNS(0, FIND(ibv_modify_qp)(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = 100, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = *gid, .hop_limit = 255 } },
    };
    RETURNS(0, FIND(ibv_modify_qp)(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
    RETURNS(0, FIND(ibv_modify_qp)(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
    return qp;
}

int main(void)
{
    verbs = dlopen("libibverbs.so.1", RTLD_NOW);
    NEED(verbs);
    RETURNS(0, FIND(ibv_fork_init)());
    int count = 0;
    struct ibv_device **list = FIND(ibv_get_device_list)(&count);
    NEED(list && count == 1);
    CHECK(!strcmp(FIND(ibv_get_device_name)(list[0]), "longhaul0"));
    struct ibv_context *context = FIND(ibv_open_device)(list[0]);
    NEED(context);
    FIND(ibv_free_device_list)(list);
    CHECK(fcntl(context->async_fd, F_GETFL) >= 0);

    struct ibv_device_attr device;
    RETURNS(0, FIND(ibv_query_device)(context, &device));
    CHECK(device.max_qp > 0 && device.max_mr > 0 && device.max_srq > 0 && device.phys_port_cnt == 1);
    struct ibv_port_attr port;
    memset(&port, 0, sizeof(port));
    int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *) = find("ibv_query_port", "IBVERBS_1.1");
    RETURNS(0, query_port(context, PORT, &port));
    CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len > 0);
    union ibv_gid gid, other;
    RETURNS(0, FIND(ibv_query_gid)(context, PORT, 0, &gid));
    CHECK(gid.global.interface_id);
    /* Every entry of the table is answered, with a GID of its own. */
    for (int index = 1; index < port.gid_tbl_len; index++)
        CHECK(!FIND(ibv_query_gid)(context, PORT, index, &other) && memcmp(&gid, &other, sizeof(gid)));

    pthread_t events;
    NEED(!pthread_create(&events, NULL, wait_for_events, context));
    struct ibv_pd *pd = FIND(ibv_alloc_pd)(context);
    NEED(pd);
    errno = 0;
    CHECK(!FIND_IN("IBVERBS_1.12", ibv_reg_dmabuf_mr)(pd, 0, 0, 0, -1, 0));
    CHECK(errno == EOPNOTSUPP || errno == EPROTONOSUPPORT);
    static char memory[1 << 16];
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    struct ibv_mr *mr = FIND_IN("IBVERBS_1.8", ibv_reg_mr_iova2)(
        pd, memory, sizeof(memory), (uintptr_t)memory, access | IBV_ACCESS_RELAXED_ORDERING);
    NEED(mr);
    struct ibv_cq *cq = FIND(ibv_create_cq)(context, 2 * DEPTH, NULL, NULL, 0);
    NEED(cq);
    struct ibv_qp *qp = ready_pair(pd, cq, &gid, port.active_mtu);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr made;
    RETURNS(0, FIND(ibv_query_qp)(qp, &attr, IBV_QP_STATE, &made));
    CHECK(attr.qp_state == IBV_QPS_RTS);
    struct ibv_ece ece;
    RETURNS(EOPNOTSUPP, FIND_IN("IBVERBS_1.10", ibv_query_ece)(qp, &ece));
    CHECK(FIND(ibv_event_type_str)(IBV_EVENT_QP_FATAL));

    RETURNS(0, FIND(ibv_destroy_qp)(qp));
    RETURNS(0, FIND(ibv_destroy_cq)(cq));
    RETURNS(0, FIND(ibv_dereg_mr)(mr));
    RETURNS(0, FIND(ibv_dealloc_pd)(pd));
    pthread_cancel(events);
    pthread_join(events, NULL);
    RETURNS(0, FIND(ibv_close_device)(context));
    return verdict();
}
