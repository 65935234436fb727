/* Two processes joined back to back: the properties of completions, memory and events. The parent is "near"; the child,
 * "far", mostly answers. Both run the same steps and meet between them. */
#include "check.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 65536, QKEY = 0x1234, PATIENCE_MS = 120000 };

struct end {
    uint32_t qpn[4];
    uint32_t rkey;
    uint64_t address;
    union ibv_gid gid;
};

static int far_side, line;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *memory;
static struct end here, there;

static void exchange(const void *mine, void *theirs, size_t size)
{
    if (write(line, mine, size) != (ssize_t)size)
        exit(3);
    for (size_t got = 0; got < size;) {
        ssize_t n = read(line, (char *)theirs + got, size - got);
        if (n <= 0)
            exit(4);
        got += n;
    }
}

static void meet(void)
{
    char mine = 1, theirs;
    exchange(&mine, &theirs, 1);
}

static struct ibv_wc next_completion(struct ibv_cq *from)
{
    struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
    for (int i = 0; i < PATIENCE_MS; i++) {
        for (int j = 0; j < 50; j++)
            if (ibv_poll_cq(from, 1, &wc) == 1)
                return wc;
        usleep(1000);
    }
    printf("%s: no completion came\n", far_side ? "far" : "near");
    failures++;
    exit(verdict());
}

static void expect(uint64_t id, enum ibv_wc_status status, enum ibv_wc_opcode opcode)
{
    struct ibv_wc wc = next_completion(cq);
    CHECK(wc.wr_id == id);
    CHECK(wc.status == status);
    CHECK(status != IBV_WC_SUCCESS || wc.opcode == opcode);
}

static struct ibv_async_event next_event(void)
{
    struct ibv_async_event event = {.event_type = -1};
    struct pollfd readable = {.fd = context->async_fd, .events = POLLIN};
    RETURNS(1, poll(&readable, 1, PATIENCE_MS));
    RETURNS(0, ibv_get_async_event(context, &event));
    ibv_ack_async_event(&event);
    return event;
}

static struct ibv_qp *make(enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .srq = srq,
        .qp_type = type,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    NEED(qp);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qkey = QKEY,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    int grants = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | grants));
    return qp;
}

static struct ibv_ah_attr the_other(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}};
    attr.grh.dgid = there.gid;
    return attr;
}

static void to_rtr(struct ibv_qp *qp, uint32_t peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = the_other(),
    };
    int mask = IBV_QP_STATE;
    if (qp->qp_type != IBV_QPT_UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    RETURNS(0, ibv_modify_qp(qp, &attr, mask));
}

static void to_rts(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    RETURNS(0, ibv_modify_qp(qp, &attr, mask));
}

static void to_error(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

/* Both sides' queue pairs, joined. */
static struct ibv_qp *join(enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp *qp = make(type, srq);
    here.qpn[0] = qp->qp_num;
    exchange(&here, &there, sizeof here);
    to_rtr(qp, there.qpn[0]);
    to_rts(qp);
    meet();
    return qp;
}

static struct ibv_sge piece(size_t offset, uint32_t length)
{
    struct ibv_sge sge = {.addr = (uintptr_t)memory + offset, .length = length, .lkey = mr->lkey};
    return sge;
}

static void receive(struct ibv_qp *qp, uint64_t id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = piece(offset, length);
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    RETURNS(0, qp->srq ? ibv_post_srq_recv(qp->srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad));
}

static struct ibv_send_wr request(uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge)
{
    struct ibv_send_wr wr = {
        .wr_id = id, .opcode = opcode, .sg_list = sge, .num_sge = sge != NULL, .send_flags = IBV_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = there.address + 32768;
    wr.wr.rdma.rkey = there.rkey;
    return wr;
}

static void post(struct ibv_qp *qp, struct ibv_send_wr wr)
{
    struct ibv_send_wr *bad;
    RETURNS(0, ibv_post_send(qp, &wr, &bad));
}

/* Waits for the last byte of the peer's write; polls, so that it can arrive. */
static void wait_for_byte(volatile char *at, char value)
{
    struct ibv_wc wc;
    for (int i = 0; i < PATIENCE_MS && *at != value; i++) {
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
        usleep(1000);
    }
    CHECK(*at == value);
}

static void datagrams(void)
{
    struct ibv_qp *qp = make(IBV_QPT_UD, NULL);
    here.qpn[0] = qp->qp_num;
    exchange(&here, &there, sizeof here);
    to_rtr(qp, 0);
    to_rts(qp);
    struct ibv_ah_attr attr = the_other();
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    NEED(ah);
    struct ibv_sge sge = piece(0, 100);
    struct ibv_send_wr wr = request(1, IBV_WR_SEND_WITH_IMM, &sge);
    wr.imm_data = htobe32(0xabcd);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = there.qpn[0];
    wr.wr.ud.remote_qkey = QKEY;
    if (far_side) {
        receive(qp, 7, 4096, 140);
        receive(qp, 8, 8192, 140);
        meet();
        struct ibv_wc wc = next_completion(cq);
        CHECK(wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 140);
        CHECK(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == htobe32(0xabcd));
        CHECK(wc.src_qp == there.qpn[0] && !memcmp(memory + 4096 + 40, "near", 4));
        struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)(memory + 4096), 1);
        struct ibv_ah_attr answer;
        RETURNS(0, ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)(memory + 4096), &answer));
        CHECK(!memcmp(&answer.grh.dgid, &there.gid, 16) && answer.is_global && answer.port_num == 1);
        NEED(back);
        wr.opcode = IBV_WR_SEND;
        wr.wr.ud.ah = back;
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_SEND);
        RETURNS(0, ibv_destroy_ah(back));
    } else {
        receive(qp, 7, 4096, 140);
        meet();
        /* Dropped for its key, and for its length: neither takes a receive. */
        strcpy(memory, "nope");
        wr.wr.ud.remote_qkey = QKEY + 1;
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_SEND);
        strcpy(memory, "near");
        wr.wr.ud.remote_qkey = QKEY;
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_SEND);
        struct ibv_wc wc = next_completion(cq);
        CHECK(wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS && wc.wc_flags == IBV_WC_GRH);
        CHECK(!memcmp(memory + 4096 + 40, "far", 3));
    }
    meet();

    /* To a group. */
    union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 239, 1, 2, 3}};
    RETURNS(0, ibv_destroy_ah(ah));
    if (far_side) {
        RETURNS(0, ibv_attach_mcast(qp, &group, 0));
        meet();
        expect(8, IBV_WC_SUCCESS, IBV_WC_RECV);
        RETURNS(0, ibv_detach_mcast(qp, &group, 0));
    } else {
        attr.grh.dgid = group;
        ah = ibv_create_ah(pd, &attr);
        NEED(ah);
        meet();
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = 0xffffff;
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_SEND);
        RETURNS(0, ibv_destroy_ah(ah));
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));
}

static void unreliable_connections(void)
{
    struct ibv_qp *qp = join(IBV_QPT_UC, NULL);
    struct ibv_sge sge = piece(0, 4000);
    if (far_side) {
        receive(qp, 1, 4096, 4000);
        receive(qp, 2, 8192, 0);
        meet();
        struct ibv_wc wc = next_completion(cq);
        CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 4000);
        wc = next_completion(cq);
        CHECK(wc.wr_id == 2 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htobe32(9));
        CHECK(!memcmp(memory + 32768, memory + 4096, 4000) && wc.byte_len == 4000);
    } else {
        meet();
        post(qp, request(1, IBV_WR_SEND, &sge));
        struct ibv_send_wr wr = request(2, IBV_WR_RDMA_WRITE_WITH_IMM, &sge), *bad;
        wr.imm_data = htobe32(9);
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_SEND);
        expect(2, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
        wr = request(3, IBV_WR_RDMA_READ, &sge);
        RETURNS(EINVAL, ibv_post_send(qp, &wr, &bad));
        wr = request(3, IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
        RETURNS(EINVAL, ibv_post_send(qp, &wr, &bad));
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));
}

static void atomics_and_lengths(void)
{
    struct ibv_qp *qp = join(IBV_QPT_RC, NULL);
    uint64_t *words = (uint64_t *)(memory + 32768), *result = (uint64_t *)(memory + 64);
    *words = 40;
    meet();
    if (!far_side) {
        struct ibv_sge sge = piece(64, 8);
        struct ibv_send_wr wr = request(1, IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
        wr.wr.atomic.remote_addr = there.address + 32768;
        wr.wr.atomic.rkey = there.rkey;
        wr.wr.atomic.compare_add = 2;
        post(qp, wr);
        struct ibv_wc wc = next_completion(cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_FETCH_ADD && wc.byte_len == 8 && *result == 40);
        wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
        wr.wr.atomic.compare_add = 42;
        wr.wr.atomic.swap = 99;
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_COMP_SWAP);
        CHECK(*result == 42);
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_COMP_SWAP);
        CHECK(*result == 99);
        /* Nothing at all, by each operation. */
        post(qp, request(2, IBV_WR_RDMA_WRITE, NULL));
        expect(2, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
        post(qp, request(3, IBV_WR_RDMA_READ, NULL));
        expect(3, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
        meet();
        struct ibv_send_wr inline_one = request(4, IBV_WR_SEND, &sge);
        char own[8] = "unpinned";
        sge = (struct ibv_sge){.addr = (uintptr_t)own, .length = 8, .lkey = 0};
        inline_one.send_flags |= IBV_SEND_INLINE | IBV_SEND_FENCE;
        post(qp, inline_one);
        expect(4, IBV_WC_SUCCESS, IBV_WC_SEND);
    } else {
        receive(qp, 5, 4096, 64);
        meet();
        expect(5, IBV_WC_SUCCESS, IBV_WC_RECV);
        CHECK(*words == 99 && !memcmp(memory + 4096, "unpinned", 8));
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));
}

static void shared_receives(void)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    NEED(srq);
    struct ibv_qp *one = join(IBV_QPT_RC, srq), *two = join(IBV_QPT_RC, srq);
    struct ibv_sge sge = piece(0, 16);
    if (far_side) {
        for (int i = 0; i < 4; i++)
            receive(one, 10 + i, 4096 + 64 * i, 64);
        struct ibv_srq_attr attr = {.srq_limit = 3};
        RETURNS(0, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
        meet();
        struct ibv_wc wc = next_completion(cq), other = next_completion(cq);
        CHECK(wc.wr_id == 10 && other.wr_id == 11 && wc.qp_num == one->qp_num && other.qp_num == two->qp_num);
        struct ibv_async_event event = next_event();
        CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
        RETURNS(0, ibv_query_srq(srq, &attr));
        CHECK(attr.srq_limit == 0);
        to_error(one);
        event = next_event();
        CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == one);
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    } else {
        meet();
        post(one, request(1, IBV_WR_SEND, &sge));
        expect(1, IBV_WC_SUCCESS, IBV_WC_SEND);
        post(two, request(2, IBV_WR_SEND, &sge));
        expect(2, IBV_WC_SUCCESS, IBV_WC_SEND);
    }
    meet();
    RETURNS(EBUSY, ibv_destroy_srq(srq));
    RETURNS(0, ibv_destroy_qp(one));
    RETURNS(0, ibv_destroy_qp(two));
    RETURNS(0, ibv_destroy_srq(srq));
}

static void drained_queues(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, NULL);
    here.qpn[0] = qp->qp_num;
    exchange(&here, &there, sizeof here);
    to_rtr(qp, there.qpn[0]);
    struct ibv_sge sge = piece(0, 64);
    if (far_side) {
        receive(qp, 1, 4096, 64);
        meet();
        /* Still ready to receive alone. */
        struct ibv_async_event event = next_event();
        CHECK(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == qp);
        expect(1, IBV_WC_SUCCESS, IBV_WC_RECV);
        to_rts(qp);
    } else {
        meet();
        to_rts(qp);
        post(qp, request(1, IBV_WR_SEND, &sge));
        expect(1, IBV_WC_SUCCESS, IBV_WC_SEND);
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
        RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
        struct ibv_async_event event = next_event();
        CHECK(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == qp);
        post(qp, request(2, IBV_WR_RDMA_WRITE, &sge));
        struct ibv_wc wc;
        usleep(20000);
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
        attr.qp_state = IBV_QPS_RTS;
        RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
        expect(2, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));
}

static void solicited_events(void)
{
    struct ibv_qp *qp = join(IBV_QPT_RC, NULL);
    struct ibv_sge sge = piece(0, 64);
    if (far_side) {
        receive(qp, 1, 4096, 64);
        receive(qp, 2, 4096, 64);
        struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
        RETURNS(0, ibv_req_notify_cq(cq, 1));
        meet();
        RETURNS(0, poll(&readable, 1, 50));
        expect(1, IBV_WC_SUCCESS, IBV_WC_RECV);
        meet();
        struct ibv_cq *ready;
        void *ready_context;
        RETURNS(0, ibv_get_cq_event(channel, &ready, &ready_context));
        CHECK(ready == cq);
        ibv_ack_cq_events(cq, 1);
        expect(2, IBV_WC_SUCCESS, IBV_WC_RECV);
    } else {
        meet();
        post(qp, request(1, IBV_WR_SEND, &sge));
        expect(1, IBV_WC_SUCCESS, IBV_WC_SEND);
        meet();
        struct ibv_send_wr wr = request(2, IBV_WR_SEND, &sge);
        wr.send_flags |= IBV_SEND_SOLICITED;
        post(qp, wr);
        expect(2, IBV_WC_SUCCESS, IBV_WC_SEND);
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));
}

/* The far side's memory must stay as it is, and both queue pairs fail as the standard says. */
static void protection(void)
{
    struct ibv_qp *qp = join(IBV_QPT_RC, NULL);
    struct ibv_sge sge = piece(0, 64);
    memset(memory + 32768, 0x5a, 64);
    meet();
    if (far_side) {
        struct ibv_async_event event = next_event();
        CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == qp);
        CHECK(memory[32768] == 0x5a);
    } else {
        struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &sge);
        wr.wr.rdma.rkey ^= 0x55;
        post(qp, wr);
        post(qp, request(2, IBV_WR_RDMA_WRITE, &sge));
        expect(1, IBV_WC_REM_ACCESS_ERR, 0);
        expect(2, IBV_WC_WR_FLUSH_ERR, 0);
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
        CHECK(attr.qp_state == IBV_QPS_ERR && qp->state == IBV_QPS_ERR);
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));

    qp = join(IBV_QPT_RC, NULL);
    if (!far_side) {
        /* Memory that is deregistered while work requests still name it. */
        struct ibv_mr *brief = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
        NEED(brief);
        sge.lkey = brief->lkey;
        RETURNS(0, ibv_dereg_mr(brief));
        post(qp, request(1, IBV_WR_RDMA_WRITE, &sge));
        expect(1, IBV_WC_LOC_PROT_ERR, 0);
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));

    qp = join(IBV_QPT_RC, NULL);
    if (far_side) {
        receive(qp, 1, 4096, 32);
        meet();
        expect(1, IBV_WC_LOC_LEN_ERR, 0);
        CHECK(next_event().event_type == IBV_EVENT_QP_REQ_ERR);
    } else {
        meet();
        sge = piece(0, 64);
        post(qp, request(1, IBV_WR_SEND, &sge));
        expect(1, IBV_WC_REM_INV_REQ_ERR, 0);
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));
}

static void regions_registered_anew(void)
{
    const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *window = ibv_reg_mr(pd, memory, 4096, rights);
    NEED(window);
    RETURNS(0, ibv_rereg_mr(window, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + 16384, 4096, 0));
    struct ibv_mr *based = ibv_reg_mr(pd, memory + 20480, 4096, rights | IBV_ACCESS_ZERO_BASED);
    NEED(based);
    memset(memory + 16384, 0, 8192);
    here.qpn[1] = window->rkey;
    here.qpn[2] = based->rkey;
    struct ibv_qp *qp = join(IBV_QPT_RC, NULL);
    /* After the peer has learnt the keys. */
    RETURNS(0, ibv_rereg_mr(window, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, rights | IBV_ACCESS_REMOTE_READ));
    meet();
    if (far_side) {
        wait_for_byte(memory + 16384 + 3, 'w');
        wait_for_byte(memory + 20480 + 103, 'w');
    } else {
        memcpy(memory, "new", 3);
        memory[3] = 'w';
        struct ibv_sge sge = piece(0, 4);
        struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &sge);
        wr.wr.rdma.remote_addr = there.address + 16384;
        wr.wr.rdma.rkey = there.qpn[1];
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
        wr.wr.rdma.remote_addr = 100;
        wr.wr.rdma.rkey = there.qpn[2];
        post(qp, wr);
        expect(1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
    }
    meet();
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_dereg_mr(window));
    RETURNS(0, ibv_dereg_mr(based));
}

/* A queue of one loses the second completion; its queue pair fails, and an event reports that. */
static void overrun_queues(void)
{
    struct ibv_cq *usual = cq, *narrow = ibv_create_cq(context, 1, NULL, NULL, 0);
    NEED(narrow);
    cq = narrow;
    struct ibv_qp *qp = make(IBV_QPT_UD, NULL);
    cq = usual;
    to_rtr(qp, 0);
    to_rts(qp);
    struct ibv_ah_attr attr = the_other();
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    NEED(ah);
    if (!far_side) {
        struct ibv_send_wr second = request(2, IBV_WR_SEND, NULL), first, *bad;
        second.wr.ud.ah = ah;
        second.wr.ud.remote_qpn = 0xfffff;
        first = second;
        first.next = &second;
        RETURNS(0, ibv_post_send(qp, &first, &bad));
        int fatal = 0, lost = 0;
        for (int i = 0; i < 2; i++) {
            struct ibv_async_event event = next_event();
            lost += event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == narrow;
            fatal += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp;
        }
        CHECK(lost == 1 && fatal == 1);
        struct ibv_wc wc;
        RETURNS(1, ibv_poll_cq(narrow, 2, &wc));
        struct ibv_qp_attr now;
        struct ibv_qp_init_attr init;
        RETURNS(0, ibv_query_qp(qp, &now, IBV_QP_STATE, &init));
        CHECK(now.qp_state == IBV_QPS_ERR);
    }
    RETURNS(0, ibv_destroy_ah(ah));
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_destroy_cq(narrow));
}

/* Attaches on request, and stays until the line ends. */
static int successor(int its_line)
{
    char byte;
    line = its_line;
    if (read(line, &byte, 1) != 1)
        return 0;
    setenv("LONGHAUL_MEMIF_ROLE", "slave", 1);
    setenv("LONGHAUL_IP", "10.77.0.2", 1);
    context = open_device();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 10, NULL, NULL, 0);
    NEED(pd && cq);
    make(IBV_QPT_UD, NULL);
    return read(line, &byte, 1) != 0;
}

int main(void)
{
    int ends[2], later[2], status = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, later))
        return 5;
    if (fork() == 0) {
        close(later[0]);
        return successor(later[1]);
    }
    close(later[1]);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return 5;
    pid_t child = fork();
    far_side = child == 0;
    if (far_side)
        close(later[0]);
    line = ends[far_side];
    close(ends[!far_side]);
    setenv("LONGHAUL_MEMIF_ROLE", far_side ? "slave" : "master", 1);
    setenv("LONGHAUL_IP", far_side ? "10.77.0.2" : "10.77.0.1", 1);
    setvbuf(stdout, NULL, _IONBF, 0);
    if (!far_side)
        signal(SIGPIPE, SIG_IGN);

    context = open_device();
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 100, NULL, channel, 1);
    memory = aligned_alloc(4096, SIZE);
    NEED(pd && cq && memory);
    memset(memory, 0, SIZE);
    strcpy(memory, far_side ? "far" : "near");
    mr = ibv_reg_mr(pd, memory, SIZE,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
                        | IBV_ACCESS_REMOTE_ATOMIC);
    NEED(mr);
    here.rkey = mr->rkey;
    here.address = (uintptr_t)memory;
    RETURNS(0, ibv_query_gid(context, 1, 1, &here.gid));
    if (far_side)
        meet();
    struct ibv_qp *first = make(IBV_QPT_UD, NULL);
    if (!far_side)
        meet();

    datagrams();
    unreliable_connections();
    atomics_and_lengths();
    shared_receives();
    drained_queues();
    solicited_events();
    protection();
    regions_registered_anew();
    overrun_queues();
    meet();
    if (far_side)
        return verdict();
    /* The far side ends, and the link with it. */
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct ibv_async_event event = next_event();
    CHECK(event.event_type == IBV_EVENT_PORT_ERR && event.element.port_num == 1);
    struct ibv_port_attr port;
    RETURNS(0, ibv_query_port(context, 1, &port));
    CHECK(port.state == IBV_PORT_DOWN);
    CHECK(write(later[0], "!", 1) == 1);
    event = next_event();
    CHECK(event.event_type == IBV_EVENT_PORT_ACTIVE && event.element.port_num == 1);
    close(later[0]);
    RETURNS(0, ibv_destroy_qp(first));
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(0, ibv_destroy_cq(cq));
    RETURNS(0, ibv_destroy_comp_channel(channel));
    RETURNS(0, ibv_dealloc_pd(pd));
    return verdict();
}
