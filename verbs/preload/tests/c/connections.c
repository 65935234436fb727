/* The connection manager's interface, used as the manual pages of librdmacm describe it: two processes, `serve` and
 * `ask`, and a scenario; or `alone`. */
#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <unistd.h>

#define SERVER "10.77.0.2"
#define OWN "10.77.0.2"

static struct sockaddr_in address(const char *ip, int port)
{
    struct sockaddr_in out = { .sin_family = AF_INET, .sin_port = htons(port) };
    inet_pton(AF_INET, ip, &out.sin_addr);
    return out;
}

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event = NULL;
    for (;;) {
        if (rdma_get_cm_event(channel, &event)) {
            printf("rdma_get_cm_event: %s\n", strerror(errno));
            exit(2);
        }
        if (event->event == wanted || event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT)
            break;
        rdma_ack_cm_event(event);
    }
    if (event->event != wanted) {
        printf("%s (status %d) instead of %s\n", rdma_event_str(event->event), event->status,
               rdma_event_str(wanted));
        exit(2);
    }
    return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event = next_event(channel, wanted);
    CHECK(event->status == 0);
    rdma_ack_cm_event(event);
}

static struct rdma_cm_id *make(struct rdma_event_channel *channel, enum rdma_port_space space)
{
    struct rdma_cm_id *id = NULL;
    RETURNS(0, rdma_create_id(channel, &id, &failures, space));
    NEED(id);
    CHECK(id->context == &failures && id->channel && id->ps == space);
    CHECK(!channel || id->channel == channel);
    return id;
}

static struct rdma_cm_id *listen_at(struct rdma_event_channel *channel, enum rdma_port_space space, int port)
{
    struct rdma_cm_id *id = make(channel, space);
    struct sockaddr_in any = address("0.0.0.0", port);
    RETURNS(0, rdma_bind_addr(id, (struct sockaddr *)&any));
    RETURNS(0, rdma_listen(id, 0));
    CHECK(ntohs(rdma_get_src_port(id)) == port);
    return id;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, enum rdma_port_space space, int port)
{
    struct rdma_cm_id *id = make(channel, space);
    struct sockaddr_in to = address(SERVER, port);
    RETURNS(0, rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(id->verbs && id->pd && id->port_num == 1);
    RETURNS(0, rdma_resolve_route(id, 1000));
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    CHECK(id->route.num_paths == 1 && id->route.path_rec);
    CHECK(ntohs(rdma_get_dst_port(id)) == port && rdma_get_src_port(id) != 0);
    CHECK(rdma_get_local_addr(id)->sa_family == AF_INET && rdma_get_peer_addr(id)->sa_family == AF_INET);
    return id;
}

static void create_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr attr = {
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
        .qp_type = type,
        .sq_sig_all = 1,
    };
    RETURNS(0, rdma_create_qp(id, NULL, &attr));
    NEED(id->qp);
    CHECK(id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
    CHECK(attr.send_cq == id->send_cq);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
    return attr.qp_state;
}

/* A connection request with private data, refused with private data; and one to nobody. */
static void refusal_serve(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener = listen_at(channel, RDMA_PS_TCP, 7101);
    for (int round = 0; round < 2; round++) {
        struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        struct rdma_cm_id *id = event->id;
        CHECK(event->listen_id == listener && id != listener && id->context == &failures);
        CHECK(event->param.conn.private_data_len == 56);
        CHECK(!memcmp(event->param.conn.private_data, "please\0", 7));
        CHECK(event->param.conn.responder_resources == 3 && event->param.conn.initiator_depth == 2);
        CHECK(ntohs(rdma_get_src_port(id)) == 7101 && rdma_get_dst_port(id) != 0);
        rdma_ack_cm_event(event);
        RETURNS(0, round ? rdma_reject_ece(id, "no", 2) : rdma_reject(id, "no", 2));
        RETURNS(-1, rdma_reject(id, "no", 2));
        RETURNS(0, rdma_destroy_id(id));
    }
    RETURNS(0, rdma_destroy_id(listener));
    rdma_destroy_event_channel(channel);
}

static void refusal_ask(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = { .private_data = "please", .private_data_len = 7, .initiator_depth = 3,
                                     .responder_resources = 2, .retry_count = 5, .rnr_retry_count = 7 };
    static const int ports[] = { 7199, 7101, 7101 }, reasons[] = { 8, 28, 35 };
    for (int n = 0; n < 3; n++) {
        struct rdma_cm_id *id = resolved(channel, RDMA_PS_TCP, ports[n]);
        create_qp(id, IBV_QPT_RC);
        CHECK(state_of(id->qp) == IBV_QPS_INIT);
        RETURNS(0, rdma_connect(id, &param));
        RETURNS(-1, rdma_connect(id, &param));
        struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_REJECTED);
        CHECK(event->id == id && event->status == reasons[n]);
        if (n > 0) {
            CHECK(event->param.conn.private_data_len == 148);
            CHECK(!memcmp(event->param.conn.private_data, "no\0", 3));
        }
        rdma_ack_cm_event(event);
        CHECK(state_of(id->qp) == IBV_QPS_ERR);
        rdma_destroy_qp(id);
        CHECK(!id->qp && !id->send_cq);
        RETURNS(0, rdma_destroy_id(id));
    }
    rdma_destroy_event_channel(channel);
}

static struct rdma_addrinfo *find(const char *port, int qp_type, int space, int flags)
{
    struct rdma_addrinfo hints = { .ai_flags = flags, .ai_qp_type = qp_type, .ai_port_space = space }, *out = NULL;
    RETURNS(0, rdma_getaddrinfo(SERVER, port, &hints, &out));
    NEED(out);
    CHECK(out->ai_qp_type == qp_type && out->ai_port_space == space && out->ai_family == AF_INET);
    return out;
}

/* Endpoints that wait for their own events, the header's inline functions, and a shared receive queue. */
static void endpoint_serve(int qp_type, const char *port)
{
    struct rdma_addrinfo *where = find(port, qp_type, RDMA_PS_TCP, RAI_PASSIVE);
    struct rdma_cm_id *listener = NULL, *id = NULL;
    char buffer[64];
    RETURNS(0, rdma_create_ep(&listener, where, NULL, NULL));
    NEED(listener);
    RETURNS(0, rdma_listen(listener, 5));
    RETURNS(0, rdma_get_request(listener, &id));
    NEED(id);
    CHECK(id->qp_type == (enum ibv_qp_type)qp_type && id->event);
    struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
    RETURNS(0, rdma_create_srq(id, NULL, &shared));
    NEED(id->srq);
    create_qp(id, qp_type);
    CHECK(id->qp->srq == id->srq && id->qp->qp_type == (enum ibv_qp_type)qp_type);
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
    NEED(mr);
    RETURNS(0, rdma_post_recv(id, NULL, buffer, sizeof buffer, mr));
    struct rdma_conn_param param = { .private_data = "welcome", .private_data_len = 8, .responder_resources = 1,
                                     .initiator_depth = 1, .rnr_retry_count = 7 };
    RETURNS(0, rdma_accept(id, &param));
    struct ibv_wc wc;
    RETURNS(1, rdma_get_recv_comp(id, &wc));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 6 && !memcmp(buffer, "hello", 6));
    RETURNS(0, rdma_post_send(id, NULL, buffer, 6, mr, 0));
    RETURNS(1, rdma_get_send_comp(id, &wc));
    CHECK(wc.status == IBV_WC_SUCCESS);
    RETURNS(0, rdma_disconnect(id));
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listener);
    rdma_freeaddrinfo(where);
}

static void endpoint_ask(int qp_type, const char *port)
{
    struct rdma_addrinfo *where = find(port, qp_type, RDMA_PS_TCP, 0);
    struct rdma_cm_id *id = NULL;
    char out[64] = "hello", in[64];
    struct ibv_qp_init_attr attr = {
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
        .sq_sig_all = 1,
    };
    RETURNS(0, rdma_create_ep(&id, where, NULL, &attr));
    NEED(id);
    CHECK(id->qp->qp_type == (enum ibv_qp_type)qp_type);
    struct ibv_mr *sent = rdma_reg_msgs(id, out, sizeof out), *received = rdma_reg_msgs(id, in, sizeof in);
    NEED(sent && received);
    RETURNS(0, rdma_post_recv(id, NULL, in, sizeof in, received));
    RETURNS(0, rdma_connect(id, NULL));
    CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
    CHECK(!memcmp(id->event->param.conn.private_data, "welcome", 8));
    CHECK(id->event->param.conn.srq == 1);
    CHECK(state_of(id->qp) == IBV_QPS_RTS);
    struct ibv_wc wc;
    RETURNS(0, rdma_post_send(id, NULL, out, 6, sent, 0));
    RETURNS(1, rdma_get_send_comp(id, &wc));
    RETURNS(1, rdma_get_recv_comp(id, &wc));
    CHECK(wc.status == IBV_WC_SUCCESS && !memcmp(in, "hello", 6));
    RETURNS(0, rdma_disconnect(id));
    RETURNS(0, rdma_disconnect(id));
    rdma_dereg_mr(sent);
    rdma_dereg_mr(received);
    rdma_destroy_ep(id);
    rdma_freeaddrinfo(where);
}

/* A datagram service: asked for, named, used, and then refused. */
static void datagrams_serve(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener = listen_at(channel, RDMA_PS_UDP, 7103);
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = event->id;
    CHECK(event->param.ud.private_data_len == 180 && !memcmp(event->param.ud.private_data, "who?\0", 5));
    CHECK(id->qp_type == IBV_QPT_UD);
    rdma_ack_cm_event(event);
    create_qp(id, IBV_QPT_UD);
    CHECK(state_of(id->qp) == IBV_QPS_RTS);
    char buffer[128];
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
    RETURNS(0, rdma_post_recv(id, NULL, buffer, sizeof buffer, mr));
    struct rdma_conn_param param = { .private_data = "me", .private_data_len = 3 };
    RETURNS(0, rdma_accept(id, &param));
    RETURNS(-1, rdma_accept(id, &param));
    struct ibv_wc wc;
    RETURNS(1, rdma_get_recv_comp(id, &wc));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 40 + 6 && !memcmp(buffer + 40, "hello", 6));
    event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *second = event->id;
    rdma_ack_cm_event(event);
    RETURNS(0, rdma_reject(second, "busy", 5));
    RETURNS(0, rdma_destroy_id(second));
    rdma_dereg_mr(mr);
    rdma_destroy_qp(id);
    RETURNS(0, rdma_destroy_id(id));
    RETURNS(0, rdma_destroy_id(listener));
    rdma_destroy_event_channel(channel);
}

static void datagrams_ask(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = { .private_data = "who?", .private_data_len = 5 };
    struct rdma_cm_id *id = resolved(channel, RDMA_PS_UDP, 7103);
    create_qp(id, IBV_QPT_UD);
    RETURNS(0, rdma_connect(id, &param));
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(event->param.ud.qkey == RDMA_UDP_QKEY && event->param.ud.qp_num > 1);
    CHECK(event->param.ud.private_data_len == 136 && !memcmp(event->param.ud.private_data, "me\0", 3));
    struct ibv_ah *ah = ibv_create_ah(id->pd, &event->param.ud.ah_attr);
    NEED(ah);
    char out[64] = "hello";
    struct ibv_mr *mr = rdma_reg_msgs(id, out, sizeof out);
    RETURNS(0, rdma_post_ud_send(id, NULL, out, 6, mr, 0, ah, event->param.ud.qp_num));
    rdma_ack_cm_event(event);
    struct ibv_wc wc;
    RETURNS(1, rdma_get_send_comp(id, &wc));
    CHECK(wc.status == IBV_WC_SUCCESS);
    struct rdma_cm_id *second = resolved(channel, RDMA_PS_UDP, 7103);
    RETURNS(0, rdma_connect(second, &param));
    event = next_event(channel, RDMA_CM_EVENT_UNREACHABLE);
    CHECK(event->id == second && event->status == 2);
    CHECK(!memcmp(event->param.ud.private_data, "busy", 5));
    rdma_ack_cm_event(event);
    RETURNS(0, rdma_destroy_id(second));
    ibv_destroy_ah(ah);
    rdma_dereg_mr(mr);
    rdma_destroy_qp(id);
    RETURNS(0, rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

/* Identifiers that move between channels while they are connected; queue pairs of the program's own. */
static void channels_serve(void)
{
    struct rdma_event_channel *first = rdma_create_event_channel(), *second = rdma_create_event_channel();
    struct rdma_cm_id *listener = listen_at(first, RDMA_PS_TCP, 7104);
    struct rdma_cm_event *event = next_event(first, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = event->id;
    rdma_ack_cm_event(event);
    RETURNS(0, rdma_migrate_id(id, second));
    CHECK(id->channel == second);
    create_qp(id, IBV_QPT_RC);
    RETURNS(0, rdma_accept(id, NULL));
    expect(second, RDMA_CM_EVENT_ESTABLISHED);
    /* From here on its calls block. */
    RETURNS(0, rdma_migrate_id(id, NULL));
    CHECK(id->channel != second);
    RETURNS(-1, rdma_migrate_id(id, NULL));
    RETURNS(0, rdma_disconnect(id));
    CHECK(id->event && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
    RETURNS(0, rdma_migrate_id(id, first));
    CHECK(id->channel == first && !id->event);
    rdma_destroy_qp(id);
    RETURNS(0, rdma_destroy_id(id));
    RETURNS(0, rdma_destroy_id(listener));
    rdma_destroy_event_channel(first);
    rdma_destroy_event_channel(second);
}

static void channels_ask(void)
{
    struct rdma_event_channel *first = rdma_create_event_channel(), *second = rdma_create_event_channel();
    struct rdma_cm_event *event;
    RETURNS(0, fcntl(first->fd, F_SETFL, O_NONBLOCK));
    RETURNS(-1, rdma_get_cm_event(first, &event));
    CHECK(errno == EAGAIN);
    RETURNS(0, fcntl(first->fd, F_SETFL, 0));
    struct rdma_cm_id *id = resolved(first, RDMA_PS_TCP, 7104);
    create_qp(id, IBV_QPT_RC);
    struct ibv_qp *qp = id->qp;
    id->qp = NULL;
    struct rdma_conn_param param = { .qp_num = qp->qp_num, .retry_count = 7, .rnr_retry_count = 7 };
    RETURNS(0, rdma_connect(id, &param));
    event = next_event(first, RDMA_CM_EVENT_CONNECT_RESPONSE);
    rdma_ack_cm_event(event);
    struct ibv_qp_attr attr;
    int mask;
    for (int state = IBV_QPS_RTR; state <= IBV_QPS_RTS; state++) {
        attr.qp_state = state;
        RETURNS(0, rdma_init_qp_attr(id, &attr, &mask));
        RETURNS(0, ibv_modify_qp(qp, &attr, mask));
    }
    RETURNS(0, rdma_establish(id));
    struct pollfd poll_for = { .fd = second->fd, .events = POLLIN };
    RETURNS(0, rdma_migrate_id(id, second));
    RETURNS(1, poll(&poll_for, 1, 60000));
    expect(second, RDMA_CM_EVENT_DISCONNECTED);
    RETURNS(0, rdma_disconnect(id));
    id->qp = qp;
    rdma_destroy_qp(id);
    RETURNS(0, rdma_destroy_id(id));
    rdma_destroy_event_channel(first);
    rdma_destroy_event_channel(second);
}

static int acknowledged;

static void *acknowledge_later(void *event)
{
    usleep(100000);
    __atomic_store_n(&acknowledged, 1, __ATOMIC_SEQ_CST);
    rdma_ack_cm_event(event);
    return NULL;
}

/* An identifier is not destroyed before its events have been acknowledged. */
static void acknowledgement(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    struct sockaddr_in to = address("10.77.0.9", 1);
    pthread_t thread;
    RETURNS(0, rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    pthread_create(&thread, NULL, acknowledge_later, event);
    RETURNS(0, rdma_destroy_id(id));
    CHECK(__atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST));
    pthread_join(thread, NULL);
    rdma_destroy_event_channel(channel);
}

static void *wait_for_request(void *listener)
{
    struct rdma_cm_id *id;
    rdma_get_request(listener, &id);
    return NULL;
}

static void *wait_for_event(void *channel)
{
    struct rdma_cm_event *event;
    rdma_get_cm_event(channel, &event);
    return NULL;
}

/* A blocked thread may be cancelled. */
static void cancelled(void *(*wait)(void *), void *argument)
{
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, wait, argument);
    usleep(50000);
    RETURNS(0, pthread_cancel(thread));
    RETURNS(0, pthread_join(thread, &result));
    CHECK(result == PTHREAD_CANCELED);
}

static void cancellation(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    cancelled(wait_for_event, channel);
    rdma_destroy_event_channel(channel);
    struct rdma_cm_id *listener = listen_at(NULL, RDMA_PS_TCP, 7105);
    cancelled(wait_for_request, listener);
    cancelled(wait_for_request, listener);
    RETURNS(0, rdma_destroy_id(listener));
}

static void *wait_and_fail(void *channel)
{
    struct rdma_cm_event *event;
    rdma_get_cm_event(channel, &event);
    exit(9);
}

/* A program may exit while one of its threads is about to wait on a destroyed channel. */
static void an_end(struct rdma_event_channel *channel)
{
    pthread_t thread;
    rdma_destroy_event_channel(channel);
    pthread_create(&thread, NULL, wait_and_fail, channel);
    usleep(50000);
}

/* Each port belongs to a port space, and to its owner. */
static void ports(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *first = listen_at(channel, RDMA_PS_TCP, 7106), *second = make(channel, RDMA_PS_TCP);
    struct rdma_cm_id *other = make(channel, RDMA_PS_UDP);
    struct sockaddr_in same = address(OWN, 7106), foreign = address("10.77.0.77", 7107);
    struct sockaddr_storage strange = { .ss_family = 27 };
    RETURNS(-1, rdma_bind_addr(second, (struct sockaddr *)&same));
    CHECK(errno == EADDRNOTAVAIL);
    RETURNS(-1, rdma_bind_addr(second, (struct sockaddr *)&foreign));
    CHECK(errno == EADDRNOTAVAIL);
    RETURNS(-1, rdma_bind_addr(second, (struct sockaddr *)&strange));
    CHECK(errno == ENODEV);
    RETURNS(0, rdma_bind_addr(other, (struct sockaddr *)&same));
    RETURNS(0, rdma_destroy_id(first));
    RETURNS(0, rdma_bind_addr(second, (struct sockaddr *)&same));
    CHECK(second->verbs);
    RETURNS(-1, rdma_bind_addr(second, (struct sockaddr *)&same));
    RETURNS(-1, rdma_resolve_route(second, 1));
    RETURNS(-1, rdma_connect(second, NULL));
    RETURNS(-1, rdma_accept(second, NULL));
    RETURNS(-1, rdma_disconnect(second));
    RETURNS(0, rdma_destroy_id(second));
    RETURNS(0, rdma_destroy_id(other));
    /* An unbound identifier gets a port. */
    first = make(channel, RDMA_PS_TCP);
    RETURNS(0, rdma_listen(first, 1));
    CHECK(rdma_get_src_port(first) != 0);
    RETURNS(0, rdma_destroy_id(first));
    /* This machine is at the port's own address; the other family is nowhere. */
    struct sockaddr_in here = address("127.0.0.1", 1);
    struct sockaddr_in6 other_family = { .sin6_family = AF_INET6, .sin6_port = htons(1), .sin6_addr = { .s6_addr = { 0xfd } } };
    first = make(channel, RDMA_PS_TCP);
    RETURNS(0, rdma_resolve_addr(first, NULL, (struct sockaddr *)&other_family, 1));
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_ADDR_ERROR);
    CHECK(event->status == -ENETUNREACH);
    rdma_ack_cm_event(event);
    RETURNS(0, rdma_resolve_addr(first, NULL, (struct sockaddr *)&here, 1));
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(((struct sockaddr_in *)rdma_get_peer_addr(first))->sin_addr.s_addr == same.sin_addr.s_addr);
    RETURNS(-1, rdma_resolve_addr(first, NULL, (struct sockaddr *)&here, 1));
    RETURNS(0, rdma_destroy_id(first));
    /* Endpoints of a transport that the device lacks. */
    struct rdma_addrinfo hints = { .ai_qp_type = IBV_QPT_XRC_SEND, .ai_port_space = RDMA_PS_TCP }, *where = NULL;
    RETURNS(0, rdma_getaddrinfo(SERVER, "7", &hints, &where));
    RETURNS(-1, rdma_create_ep(&first, where, NULL, NULL));
    CHECK(errno == EOPNOTSUPP);
    rdma_freeaddrinfo(where);
    rdma_destroy_event_channel(channel);
}

/* Joins a group at once, and leaves it again. */
static void multicast(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id = make(channel, RDMA_PS_UDP), *connected = make(channel, RDMA_PS_TCP);
    struct sockaddr_in group = address("224.9.8.7", 0), own = address(OWN, 0);
    RETURNS(-1, rdma_join_multicast(id, (struct sockaddr *)&group, id));
    RETURNS(0, rdma_bind_addr(id, (struct sockaddr *)&own));
    RETURNS(0, rdma_bind_addr(connected, (struct sockaddr *)&own));
    RETURNS(-1, rdma_join_multicast(connected, (struct sockaddr *)&group, id));
    RETURNS(-1, rdma_leave_multicast(id, (struct sockaddr *)&group));
    CHECK(errno == EADDRNOTAVAIL);
    create_qp(id, IBV_QPT_UD);
    for (int round = 0; round < 2; round++) {
        RETURNS(0, rdma_join_multicast(id, (struct sockaddr *)&group, &group));
        struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
        CHECK(event->id == id && event->status == 0 && event->param.ud.private_data == &group);
        CHECK(event->param.ud.qp_num == 0xffffff && event->param.ud.qkey == RDMA_UDP_QKEY);
        static const uint8_t gid[16] = { [10] = 0xff, [11] = 0xff, [12] = 224, [13] = 9, [14] = 8, [15] = 7 };
        CHECK(!memcmp(event->param.ud.ah_attr.grh.dgid.raw, gid, 16));
        rdma_ack_cm_event(event);
        RETURNS(EBUSY, ibv_destroy_qp(id->qp));
        RETURNS(0, rdma_leave_multicast(id, (struct sockaddr *)&group));
    }
    /* Left before its event was read. */
    RETURNS(0, rdma_join_multicast(id, (struct sockaddr *)&group, &group));
    RETURNS(0, rdma_leave_multicast(id, (struct sockaddr *)&group));
    RETURNS(0, rdma_join_multicast(id, (struct sockaddr *)&group, &own));
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
    CHECK(event->param.ud.private_data == &own);
    rdma_ack_cm_event(event);
    rdma_destroy_qp(id);
    RETURNS(0, rdma_destroy_id(id));
    RETURNS(0, rdma_destroy_id(connected));
    rdma_destroy_event_channel(channel);
}

/* Null pointers are refused wherever the interface takes one. */
static void nothing(void)
{
    struct sockaddr_in to = address(SERVER, 1);
    struct sockaddr *where = (struct sockaddr *)&to;
    struct rdma_cm_id *id = NULL;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
    struct rdma_event_channel *channel = rdma_create_event_channel();
    int mask = 0;
    RETURNS(-1, rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP));
    RETURNS(-1, rdma_create_id(channel, &id, NULL, (enum rdma_port_space)0x77));
    CHECK(errno == EINVAL && !id);
    RETURNS(-1, rdma_get_cm_event(channel, NULL));
    RETURNS(-1, rdma_get_cm_event(NULL, NULL));
    RETURNS(-1, rdma_ack_cm_event(NULL));
    RETURNS(-1, rdma_bind_addr(NULL, where));
    RETURNS(-1, rdma_resolve_addr(NULL, NULL, where, 1));
    RETURNS(-1, rdma_resolve_route(NULL, 1));
    RETURNS(-1, rdma_create_qp(NULL, NULL, NULL));
    RETURNS(-1, rdma_create_srq(NULL, NULL, NULL));
    RETURNS(-1, rdma_connect(NULL, NULL));
    RETURNS(-1, rdma_listen(NULL, 0));
    RETURNS(-1, rdma_get_request(NULL, &id));
    RETURNS(-1, rdma_accept(NULL, NULL));
    RETURNS(-1, rdma_establish(NULL));
    RETURNS(-1, rdma_reject(NULL, NULL, 0));
    RETURNS(-1, rdma_disconnect(NULL));
    RETURNS(-1, rdma_notify(NULL, IBV_EVENT_COMM_EST));
    RETURNS(-1, rdma_init_qp_attr(NULL, &attr, &mask));
    RETURNS(-1, rdma_set_option(NULL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &mask, 1));
    RETURNS(-1, rdma_migrate_id(NULL, channel));
    RETURNS(-1, rdma_join_multicast(NULL, where, NULL));
    RETURNS(-1, rdma_join_multicast_ex(NULL, NULL, NULL));
    RETURNS(-1, rdma_leave_multicast(NULL, where));
    RETURNS(-1, rdma_create_ep(NULL, NULL, NULL, NULL));
    RETURNS(-1, rdma_destroy_id(NULL));
    rdma_destroy_qp(NULL);
    rdma_destroy_srq(NULL);
    rdma_destroy_ep(NULL);
    CHECK(rdma_get_src_port(NULL) == 0 && rdma_get_dst_port(NULL) == 0);
    id = make(channel, RDMA_PS_TCP);
    struct ibv_ece ece = { .vendor_id = 0x1234, .options = 1 };
    RETURNS(-1, rdma_bind_addr(id, NULL));
    RETURNS(-1, rdma_resolve_addr(id, NULL, NULL, 1));
    RETURNS(-1, rdma_create_qp(id, NULL, NULL));
    RETURNS(-1, rdma_set_option(id, RDMA_OPTION_ID, 77, &mask, 4));
    CHECK(errno == ENOSYS);
    RETURNS(0, rdma_set_local_ece(id, &ece));
    RETURNS(0, rdma_get_remote_ece(id, &ece));
    CHECK(ece.vendor_id == 0);
    RETURNS(-1, rdma_set_local_ece(id, &ece));
    RETURNS(0, rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
    rdma_destroy_event_channel(NULL);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "alone")) {
        nothing();
        acknowledgement();
        cancellation();
        ports();
        multicast();
        an_end(rdma_create_event_channel());
        return verdict();
    }
    if (argc != 3)
        return 2;
    int serves = !strcmp(argv[1], "serve");
    if (!strcmp(argv[2], "refusal"))
        serves ? refusal_serve() : refusal_ask();
    else if (!strcmp(argv[2], "reliable"))
        serves ? endpoint_serve(IBV_QPT_RC, "7102") : endpoint_ask(IBV_QPT_RC, "7102");
    else if (!strcmp(argv[2], "unreliable"))
        serves ? endpoint_serve(IBV_QPT_UC, "7102") : endpoint_ask(IBV_QPT_UC, "7102");
    else if (!strcmp(argv[2], "datagrams"))
        serves ? datagrams_serve() : datagrams_ask();
    else if (!strcmp(argv[2], "channels"))
        serves ? channels_serve() : channels_ask();
    else
        return 2;
    return verdict();
}
