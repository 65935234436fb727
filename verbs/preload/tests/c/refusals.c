/* Errors of invalid calls: the errno values of rdma-core and of kernel devices. One process, without a peer. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[65536] __attribute__((aligned(4096)));

static struct ibv_qp_init_attr wanted(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64},
    };
    return init;
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = wanted(type);
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    NEED(qp);
    return qp;
}

static int to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7};
    int grants = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | grants);
}

static struct ibv_ah_attr somewhere(const char *last_bytes)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}};
    attr.grh.dgid.raw[10] = attr.grh.dgid.raw[11] = 0xff;
    memcpy(attr.grh.dgid.raw + 12, last_bytes, 4);
    return attr;
}

/* Datagram queue pairs need no peer, hence are ready to send at once. */
static int to_rts(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int result = to_init(qp);
    if (!result)
        result = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
    attr.qp_state = IBV_QPS_RTS;
    if (!result)
        result = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
    return result;
}

static void devices_and_ports(void)
{
    struct ibv_device_attr attr;
    struct ibv_device_attr_ex more;
    struct ibv_query_device_ex_input input = {.comp_mask = 1};
    struct ibv_port_attr port;
    struct ibv_gid_entry entries[8];
    union ibv_gid gid;
    __be16 pkey;
    RETURNS(0, ibv_query_device(context, &attr));
    CHECK(attr.atomic_cap == IBV_ATOMIC_HCA && attr.max_srq > 0 && attr.max_ah > 0 && attr.max_mcast_grp > 0);
    CHECK(attr.vendor_id != 0 && attr.vendor_part_id != 0);
    CHECK(attr.max_mw == 0 && attr.max_sge >= 1 && attr.max_srq_sge >= 1 && attr.max_srq_wr >= 1024);
    RETURNS(0, ibv_query_device_ex(context, NULL, &more));
    CHECK(more.orig_attr.max_qp == attr.max_qp && more.hca_core_clock == 1000000);
    CHECK(more.odp_caps.general_caps == 0 && more.tso_caps.max_tso == 0 && more.max_dm_size == 0);
    CHECK(more.packet_pacing_caps.supported_qpts == (1 << IBV_QPT_RC | 1 << IBV_QPT_UC | 1 << IBV_QPT_UD));
    RETURNS(EINVAL, ibv_query_device_ex(context, &input, &more));
    RETURNS(0, ibv_query_port(context, 1, &port));
    RETURNS(EINVAL, ibv_query_port(context, 2, &port));
    CHECK(port.max_msg_sz == 1u << 31 && port.link_layer == IBV_LINK_LAYER_ETHERNET);
    RETURNS(0, ibv_query_gid(context, 1, 1, &gid));
    RETURNS(-1, ibv_query_gid(context, 1, 99, &gid));
    RETURNS(0, ibv_query_pkey(context, 1, 0, &pkey));
    CHECK(pkey == 0xffff);
    RETURNS(-1, ibv_query_pkey(context, 1, 1, &pkey));
    RETURNS(0, ibv_get_pkey_index(context, 1, 0xffff));
    RETURNS(-1, ibv_get_pkey_index(context, 1, 0x7fff));
    CHECK(port.gid_tbl_len == 1 && ibv_query_gid_table(context, entries, 8, 0) == 1);
    CHECK(ibv_query_gid_table(context, entries, 0, 0) == -EINVAL);
    CHECK(ibv_query_gid_table(context, entries, 8, 1) == -EINVAL);
    RETURNS(0, ibv_query_gid_ex(context, 1, 1, entries, 0));
    CHECK(entries[0].gid_type == IBV_GID_TYPE_ROCE_V2);
    RETURNS(EINVAL, ibv_query_gid_ex(context, 1, 99, entries, 0));
    RETURNS(EINVAL, ibv_query_gid_ex(context, 2, 0, entries, 0));
    CHECK(context->num_comp_vectors > 1);
    int shared = dup(context->cmd_fd);
    CHECK(shared >= 0);
    REFUSED(EOPNOTSUPP, ibv_import_device(shared));
    close(shared);

    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    RETURNS(0, ibv_query_rt_values_ex(context, &values));
    CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_nsec > 0);
}

static void domains(void)
{
    struct ibv_td_init_attr td_attr = {0};
    struct ibv_td *td = ibv_alloc_td(context, &td_attr);
    NEED(td);
    td_attr.comp_mask = 1;
    REFUSED(EINVAL, ibv_alloc_td(context, &td_attr));
    struct ibv_pd *inner = ibv_alloc_pd(context);
    struct ibv_parent_domain_init_attr attr = {.pd = inner, .td = td};
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
    NEED(parent);
    attr.comp_mask = 0x80;
    REFUSED(EINVAL, ibv_alloc_parent_domain(context, &attr));
    attr = (struct ibv_parent_domain_init_attr){0};
    REFUSED(EINVAL, ibv_alloc_parent_domain(context, &attr));
    RETURNS(EBUSY, ibv_dealloc_td(td));
    RETURNS(EBUSY, ibv_dealloc_pd(inner));
    struct ibv_mr *mr = ibv_reg_mr(parent, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
    NEED(mr);
    RETURNS(EBUSY, ibv_dealloc_pd(parent));
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(0, ibv_dealloc_pd(parent));
    RETURNS(EINVAL, ibv_dealloc_pd(parent));
    RETURNS(0, ibv_dealloc_td(td));
    RETURNS(EINVAL, ibv_dealloc_td(td));
    RETURNS(0, ibv_dealloc_pd(inner));
    RETURNS(EINVAL, ibv_dealloc_pd(NULL));
    REFUSED(EINVAL, ibv_alloc_pd(NULL));
}

static void memory_regions(void)
{
    const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
                    | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, all | IBV_ACCESS_RELAXED_ORDERING);
    NEED(mr);
    CHECK(mr->addr == memory && mr->length == sizeof memory && mr->pd == pd && mr->context == context);
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(EINVAL, ibv_dereg_mr(mr));
    RETURNS(EINVAL, ibv_dereg_mr(NULL));
    REFUSED(EINVAL, ibv_reg_mr(NULL, memory, 4096, all));
    REFUSED(EINVAL, ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_REMOTE_WRITE));
    REFUSED(EINVAL, ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_REMOTE_ATOMIC));
    REFUSED(EINVAL, ibv_reg_mr(pd, memory, 4096, 1 << 9));
    REFUSED(EINVAL, ibv_reg_mr(pd, memory, 0, all));
    REFUSED(EFAULT, ibv_reg_mr(pd, NULL, 4096, all));
    REFUSED(EINVAL, ibv_reg_mr(pd, memory, SIZE_MAX, all));
    REFUSED(EFAULT, ibv_reg_mr(pd, (void *)4096, 1, 0));
    REFUSED(EOPNOTSUPP, ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_ON_DEMAND));
    REFUSED(EOPNOTSUPP, ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND));
    REFUSED(EINVAL, ibv_reg_mr_iova(pd, memory, 4096, 5, all));
    struct ibv_mr *moved = ibv_reg_mr_iova(pd, memory, 4096, 0x10000, all);
    CHECK(moved && moved->lkey && !ibv_dereg_mr(moved));
    struct ibv_mr *based = ibv_reg_mr(pd, memory + 3, 4096, all | IBV_ACCESS_ZERO_BASED);
    CHECK(based && !ibv_dereg_mr(based));
    struct ibv_mr *huge = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB | IBV_ACCESS_MW_BIND);
    CHECK(huge && !ibv_dereg_mr(huge));
    /* More than 2 GiB; one page of it 2^20 times over would do, but nobody reads it. */
    const size_t long_length = (2ul << 30) + 4096;
    char *far_memory = mmap(NULL, long_length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct ibv_mr *long_one = ibv_reg_mr(pd, far_memory, long_length, IBV_ACCESS_REMOTE_READ);
    CHECK(long_one && long_one->length == long_length && !ibv_dereg_mr(long_one));
    REFUSED(EFAULT, ibv_reg_mr(pd, far_memory, 4096, IBV_ACCESS_LOCAL_WRITE));
    munmap(far_memory, long_length);
    REFUSED(EFAULT, ibv_reg_mr(pd, far_memory, 4096, 0));

    mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
    NEED(mr);
    RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0));
    RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 1 << 5, NULL, NULL, 0, 0));
    RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0));
    RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0));
    RETURNS(IBV_REREG_MR_ERR_CMD, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE));
    struct ibv_pd *other = ibv_alloc_pd(context);
    const uint32_t lkey = mr->lkey, rkey = mr->rkey;
    RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, other, memory + 64, 128, 0));
    CHECK(mr->addr == memory + 64 && mr->length == 128 && mr->pd == other);
    CHECK(mr->lkey == lkey && mr->rkey == rkey);
    RETURNS(EBUSY, ibv_dealloc_pd(other));
    RETURNS(0, ibv_dereg_mr(mr));
    RETURNS(0, ibv_dealloc_pd(other));

    REFUSED(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, 0));
    REFUSED(EOPNOTSUPP, ibv_alloc_null_mr(pd));
    REFUSED(EOPNOTSUPP, ibv_alloc_mw(pd, IBV_MW_TYPE_1));
    struct ibv_alloc_dm_attr dm = {.length = 64};
    REFUSED(EOPNOTSUPP, ibv_alloc_dm(context, &dm));
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64};
    RETURNS(EOPNOTSUPP, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
}

static void completion_queues(void)
{
    struct ibv_device_attr attr;
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    NEED(channel);
    ibv_query_device(context, &attr);
    REFUSED(EINVAL, ibv_create_cq(context, 0, NULL, NULL, 0));
    REFUSED(EINVAL, ibv_create_cq(context, -1, NULL, NULL, 0));
    REFUSED(EINVAL, ibv_create_cq(context, attr.max_cqe + 1, NULL, NULL, 0));
    REFUSED(EINVAL, ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors));
    REFUSED(EINVAL, ibv_create_cq(context, 16, NULL, NULL, -1));
    REFUSED(EINVAL, ibv_create_cq(NULL, 16, NULL, NULL, 0));
    struct ibv_cq *one = ibv_create_cq(context, 16, &attr, channel, context->num_comp_vectors - 1);
    NEED(one);
    CHECK(one->cqe >= 16 && one->channel == channel && one->cq_context == &attr && channel->refcnt == 1);
    RETURNS(EBUSY, ibv_destroy_comp_channel(channel));
    RETURNS(0, ibv_resize_cq(one, 1000));
    CHECK(one->cqe >= 1000);
    RETURNS(EINVAL, ibv_resize_cq(one, 0));
    RETURNS(EINVAL, ibv_resize_cq(one, attr.max_cqe + 1));
    RETURNS(0, ibv_req_notify_cq(one, 1));
    struct ibv_wc wc;
    RETURNS(0, ibv_poll_cq(one, 1, &wc));
    struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = 4}};
    RETURNS(EOPNOTSUPP, ibv_modify_cq(one, &moderation));
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    struct ibv_cq *ready;
    void *ready_context;
    RETURNS(-1, ibv_get_cq_event(channel, &ready, &ready_context));
    CHECK(errno == EAGAIN);
    RETURNS(0, ibv_destroy_cq(one));
    RETURNS(EINVAL, ibv_destroy_cq(one));
    RETURNS(0, ibv_destroy_comp_channel(channel));
    RETURNS(EINVAL, ibv_destroy_comp_channel(channel));
}

static void shared_queues(void)
{
    struct ibv_device_attr device;
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 10, .max_sge = 2, .srq_limit = 99}};
    struct ibv_srq_attr attr;
    uint32_t number;
    ibv_query_device(context, &device);
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    NEED(srq);
    CHECK(init.attr.max_wr >= 10 && init.attr.max_sge >= 2 && srq->pd == pd && srq->context == context);
    RETURNS(0, ibv_query_srq(srq, &attr));
    CHECK(attr.max_wr == init.attr.max_wr && attr.max_sge == init.attr.max_sge && attr.srq_limit == 0);
    struct ibv_srq_init_attr wrong = {.attr = {.max_wr = 0, .max_sge = 1}};
    REFUSED(EINVAL, ibv_create_srq(pd, &wrong));
    wrong.attr.max_wr = device.max_srq_wr + 1;
    REFUSED(EINVAL, ibv_create_srq(pd, &wrong));
    wrong.attr = (struct ibv_srq_attr){.max_wr = 4, .max_sge = device.max_srq_sge + 1};
    REFUSED(EINVAL, ibv_create_srq(pd, &wrong));
    REFUSED(EINVAL, ibv_create_srq(NULL, &init));
    attr = (struct ibv_srq_attr){.max_wr = 100, .srq_limit = 50};
    RETURNS(0, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
    RETURNS(0, ibv_query_srq(srq, &attr));
    CHECK(attr.max_wr >= 100 && attr.srq_limit == 50);
    attr.srq_limit = 1 << 20;
    RETURNS(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    RETURNS(EINVAL, ibv_modify_srq(srq, &attr, 1 << 7));
    RETURNS(EOPNOTSUPP, ibv_get_srq_num(srq, &number));
    struct ibv_srq_init_attr_ex extended = {
        .attr = {.max_wr = 4, .max_sge = 1},
        .comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
        .srq_type = IBV_SRQT_BASIC,
        .pd = pd,
    };
    struct ibv_srq *basic = ibv_create_srq_ex(context, &extended);
    CHECK(basic && !ibv_destroy_srq(basic));
    extended.srq_type = IBV_SRQT_XRC;
    REFUSED(EOPNOTSUPP, ibv_create_srq_ex(context, &extended));
    extended.srq_type = IBV_SRQT_TM;
    REFUSED(EOPNOTSUPP, ibv_create_srq_ex(context, &extended));

    struct ibv_sge sges[3] = {{.addr = (uintptr_t)memory}};
    struct ibv_recv_wr second = {.num_sge = 3, .sg_list = sges}, first = {.next = &second}, *bad = NULL;
    RETURNS(EINVAL, ibv_post_srq_recv(srq, &first, &bad));
    CHECK(bad == &second);
    first.next = NULL;
    int posted = 1, result;
    while ((result = ibv_post_srq_recv(srq, &first, &bad)) == 0)
        posted++;
    CHECK(result == ENOMEM && bad == &first && posted == (int)attr.max_wr);

    struct ibv_qp_init_attr qp_init = wanted(IBV_QPT_RC);
    qp_init.srq = srq;
    struct ibv_qp *qp = ibv_create_qp(pd, &qp_init);
    NEED(qp);
    CHECK(qp_init.cap.max_recv_wr == 0 && qp->srq == srq);
    RETURNS(0, to_init(qp));
    RETURNS(EINVAL, ibv_post_recv(qp, &first, &bad));
    CHECK(bad == &first);
    RETURNS(EBUSY, ibv_destroy_srq(srq));
    struct ibv_pd *other = ibv_alloc_pd(context);
    REFUSED(EINVAL, ibv_create_qp(other, &qp_init));
    ibv_dealloc_pd(other);
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_destroy_srq(srq));
    RETURNS(EINVAL, ibv_destroy_srq(srq));
}

static void creation_of_queue_pairs(void)
{
    struct ibv_device_attr device;
    ibv_query_device(context, &device);
    struct ibv_qp_init_attr init = wanted(IBV_QPT_RC);
    REFUSED(EINVAL, ibv_create_qp(NULL, &init));
    init.send_cq = NULL;
    REFUSED(EINVAL, ibv_create_qp(pd, &init));
    init = wanted(IBV_QPT_RC);
    init.cap.max_send_wr = device.max_qp_wr + 1;
    REFUSED(EINVAL, ibv_create_qp(pd, &init));
    init = wanted(IBV_QPT_RC);
    init.cap.max_recv_sge = device.max_sge + 1;
    REFUSED(EINVAL, ibv_create_qp(pd, &init));
    init = wanted(IBV_QPT_RC);
    init.cap.max_inline_data = 1 << 20;
    REFUSED(EINVAL, ibv_create_qp(pd, &init));
    init = wanted(IBV_QPT_RAW_PACKET);
    REFUSED(EOPNOTSUPP, ibv_create_qp(pd, &init));
    init = wanted(IBV_QPT_XRC_SEND);
    REFUSED(EOPNOTSUPP, ibv_create_qp(pd, &init));
    init = wanted(77);
    REFUSED(EINVAL, ibv_create_qp(pd, &init));

    init = wanted(IBV_QPT_RC);
    init.cap.max_send_wr = init.cap.max_recv_wr = device.max_qp_wr;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    NEED(qp);
    CHECK(init.cap.max_send_wr == (unsigned)device.max_qp_wr && init.cap.max_recv_wr == (unsigned)device.max_qp_wr);
    RETURNS(0, ibv_destroy_qp(qp));

    init = wanted(IBV_QPT_RC);
    init.cap.max_send_wr = 100;
    qp = ibv_create_qp(pd, &init);
    NEED(qp);
    CHECK(init.cap.max_send_wr >= 100 && init.cap.max_inline_data >= 64);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr back;
    RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_CAP, &back));
    CHECK(!memcmp(&back.cap, &init.cap, sizeof back.cap) && !memcmp(&attr.cap, &init.cap, sizeof attr.cap));
    CHECK(back.qp_type == IBV_QPT_RC && back.send_cq == cq && attr.qp_state == IBV_QPS_RESET);
    RETURNS(EBUSY, ibv_destroy_cq(cq));
    RETURNS(EBUSY, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(EINVAL, ibv_destroy_qp(qp));

    struct ibv_qp_init_attr_ex extended = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_UC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
        .pd = pd,
    };
    qp = ibv_create_qp_ex(context, &extended);
    CHECK(qp && !ibv_destroy_qp(qp));
    extended.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    REFUSED(EOPNOTSUPP, ibv_create_qp_ex(context, &extended));
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    extended.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND;
    qp = ibv_create_qp_ex(context, &extended);
    CHECK(qp && !ibv_destroy_qp(qp));
    extended.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
    REFUSED(EOPNOTSUPP, ibv_create_qp_ex(context, &extended));
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH;
    REFUSED(EOPNOTSUPP, ibv_create_qp_ex(context, &extended));
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | 1u << 30;
    REFUSED(EINVAL, ibv_create_qp_ex(context, &extended));
    struct ibv_qp_open_attr open = {0};
    REFUSED(EOPNOTSUPP, ibv_open_qp(context, &open));
    struct ibv_xrcd_init_attr xrcd = {0};
    REFUSED(EOPNOTSUPP, ibv_open_xrcd(context, &xrcd));
}

static void states(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    const int needed = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, needed & ~IBV_QP_PORT));
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, needed | IBV_QP_QKEY));
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, needed | IBV_QP_CAP));
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, needed | 1 << 29));
    attr.port_num = 2;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, needed));
    attr.port_num = 1;
    attr.pkey_index = 1;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, needed));
    attr.pkey_index = 0;
    attr.qp_state = IBV_QPS_RTS;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_SQE;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_INIT;
    RETURNS(0, ibv_modify_qp(qp, &attr, needed));
    CHECK(qp->state == IBV_QPS_INIT);

    const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                       | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.ah_attr = somewhere("\x0a\x4d\x00\x01");
    attr.dest_qp_num = 17;
    attr.max_dest_rd_atomic = 4;
    attr.ah_attr.is_global = 0;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, to_rtr));
    attr.ah_attr.is_global = 1;
    attr.path_mtu = 9;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, to_rtr));
    attr.path_mtu = IBV_MTU_1024;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, to_rtr & ~IBV_QP_AV));
    RETURNS(EOPNOTSUPP, ibv_modify_qp(qp, &attr, to_rtr | IBV_QP_ALT_PATH));
    RETURNS(0, ibv_modify_qp(qp, &attr, to_rtr));
    const int to_send = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
                        | IBV_QP_MAX_QP_RD_ATOMIC;
    attr.qp_state = IBV_QPS_RTS;
    attr.retry_cnt = 8;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, to_send));
    attr.retry_cnt = 7;
    attr.timeout = 32;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, to_send));
    attr.timeout = 14;
    attr.cur_qp_state = IBV_QPS_RTS;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, to_send | IBV_QP_CUR_STATE));
    attr.cur_qp_state = IBV_QPS_RTR;
    RETURNS(0, ibv_modify_qp(qp, &attr, to_send | IBV_QP_CUR_STATE | IBV_QP_PATH_MIG_STATE));

    struct ibv_qp_rate_limit_attr limit = {.rate_limit = 50000};
    RETURNS(0, ibv_modify_qp_rate_limit(qp, &limit));
    RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &(struct ibv_qp_init_attr){0}));
    CHECK(attr.rate_limit == 50000 && attr.timeout == 14 && attr.dest_qp_num == 17);
    CHECK(attr.path_mtu == IBV_MTU_1024 && attr.ah_attr.is_global && attr.port_num == 1);
    limit = (struct ibv_qp_rate_limit_attr){.max_burst_sz = 4096};
    RETURNS(EINVAL, ibv_modify_qp_rate_limit(qp, &limit));
    limit = (struct ibv_qp_rate_limit_attr){.comp_mask = 1};
    RETURNS(EINVAL, ibv_modify_qp_rate_limit(qp, &limit));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD};
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_STATE, &(struct ibv_qp_init_attr){0}));
    CHECK(attr.qp_state == IBV_QPS_SQD && attr.sq_draining == 0);
    attr.qp_state = IBV_QPS_ERR;
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_INIT;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, needed));
    attr.qp_state = IBV_QPS_RESET;
    RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    RETURNS(EINVAL, ibv_modify_qp(NULL, &attr, IBV_QP_STATE));
    RETURNS(EINVAL, ibv_modify_qp(qp, NULL, IBV_QP_STATE));
    RETURNS(0, ibv_destroy_qp(qp));
}

static void posts(void)
{
    struct ibv_qp *qp = make(IBV_QPT_UD), *connected = make(IBV_QPT_RC);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_ah_attr attr = somewhere("\x0a\x4d\x00\x01");
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    NEED(ah && mr);
    struct ibv_sge sges[20] = {{.addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey}};
    struct ibv_send_wr second = {.opcode = IBV_WR_SEND, .sg_list = sges, .num_sge = 1, .wr.ud = {.ah = ah}};
    struct ibv_send_wr first = second, *bad = NULL;
    struct ibv_recv_wr receive = {.sg_list = sges, .num_sge = 1}, *bad_receive = NULL;
    first.next = &second;

    /* Before the state allows it. */
    RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    CHECK(bad == &second);
    RETURNS(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
    CHECK(bad_receive == &receive);
    RETURNS(0, to_rts(qp));
    RETURNS(0, to_init(connected));
    RETURNS(EINVAL, ibv_post_send(connected, &second, &bad));
    RETURNS(0, ibv_post_recv(connected, &receive, &bad_receive));

    /* A list is posted up to the one that is refused. */
    second.num_sge = 3;
    RETURNS(EINVAL, ibv_post_send(qp, &first, &bad));
    CHECK(bad == &second);
    second.num_sge = 20;
    RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    second.num_sge = -1;
    RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    second.num_sge = 1;
    second.sg_list = NULL;
    RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    second.sg_list = sges;
    second.wr.ud.ah = NULL;
    RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    second.wr.ud.ah = ah;
    enum ibv_wr_opcode wrong[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV, 99};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        second.opcode = wrong[i];
        RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    }
    second.opcode = IBV_WR_SEND;
    second.send_flags = IBV_SEND_IP_CSUM;
    RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    second.send_flags = IBV_SEND_INLINE;
    sges[0].length = 65;
    RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    sges[0].length = 64;
    sges[0].lkey = 0xdead;
    RETURNS(0, ibv_post_send(qp, &second, &bad));
    sges[0].length = 0x80000001;
    second.send_flags = 0;
    RETURNS(EINVAL, ibv_post_send(qp, &second, &bad));
    RETURNS(0, ibv_post_send(qp, NULL, &bad));

    /* In the error state all requests are accepted, and flushed. */
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    struct ibv_wc wc;
    RETURNS(0, ibv_modify_qp(connected, &error, IBV_QP_STATE));
    RETURNS(1, ibv_poll_cq(cq, 1, &wc));
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == connected->qp_num);
    sges[0].length = 64;
    first = (struct ibv_send_wr){.wr_id = 5, .opcode = IBV_WR_RDMA_WRITE, .sg_list = sges, .num_sge = 1};
    RETURNS(0, ibv_post_send(connected, &first, &bad));
    RETURNS(1, ibv_poll_cq(cq, 1, &wc));
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 5);
    first.opcode = IBV_WR_LOCAL_INV;
    RETURNS(EOPNOTSUPP, ibv_post_send(connected, &first, &bad));
    first.opcode = IBV_WR_BIND_MW;
    RETURNS(EOPNOTSUPP, ibv_post_send(connected, &first, &bad));
    first.opcode = IBV_WR_TSO;
    RETURNS(EOPNOTSUPP, ibv_post_send(connected, &first, &bad));
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_destroy_qp(connected));
    while (ibv_poll_cq(cq, 1, &wc) > 0)
        ;
    RETURNS(0, ibv_destroy_ah(ah));
    RETURNS(EINVAL, ibv_destroy_ah(ah));
    RETURNS(0, ibv_dereg_mr(mr));
}

static void addresses(void)
{
    struct ibv_pd *own = ibv_alloc_pd(context);
    struct ibv_ah_attr attr = somewhere("\x0a\x4d\x00\x01");
    struct ibv_ah *ah = ibv_create_ah(own, &attr);
    NEED(ah);
    RETURNS(EBUSY, ibv_dealloc_pd(own));
    RETURNS(0, ibv_destroy_ah(ah));
    RETURNS(0, ibv_dealloc_pd(own));
    REFUSED(EINVAL, ibv_create_ah(NULL, &attr));
    REFUSED(EINVAL, ibv_create_ah(pd, NULL));
    attr.port_num = 2;
    REFUSED(EINVAL, ibv_create_ah(pd, &attr));
    attr = somewhere("\x0a\x4d\x00\x01");
    attr.is_global = 0;
    REFUSED(EINVAL, ibv_create_ah(pd, &attr));
    attr = somewhere("\x0a\x4d\x00\x01");
    attr.grh.sgid_index = 9;
    REFUSED(EINVAL, ibv_create_ah(pd, &attr));
    attr = somewhere("\x0a\x4d\x00\x01");
    memset(attr.grh.dgid.raw, 0xfd, 16);
    REFUSED(EINVAL, ibv_create_ah(pd, &attr));
    RETURNS(EINVAL, ibv_destroy_ah(NULL));

    union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 224, 1, 2, 3}}, lone = somewhere("\x0a\x4d\x00\x01").grh.dgid;
    struct ibv_qp *qp = make(IBV_QPT_UD), *connected = make(IBV_QPT_RC);
    RETURNS(0, ibv_attach_mcast(qp, &group, 0));
    RETURNS(0, ibv_attach_mcast(qp, &group, 0));
    RETURNS(EINVAL, ibv_attach_mcast(connected, &group, 0));
    RETURNS(EINVAL, ibv_attach_mcast(qp, &lone, 0));
    RETURNS(EINVAL, ibv_attach_mcast(qp, NULL, 0));
    RETURNS(EBUSY, ibv_destroy_qp(qp));
    RETURNS(0, ibv_detach_mcast(qp, &group, 0));
    RETURNS(EINVAL, ibv_detach_mcast(qp, &group, 0));
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_destroy_qp(connected));
}

static atomic_int acknowledged;

static void *acknowledge_late(void *event)
{
    usleep(50000);
    acknowledged = 1;
    ibv_ack_async_event(event);
    return NULL;
}

static void events(void)
{
    struct ibv_async_event event;
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    RETURNS(-1, ibv_get_async_event(context, &event));
    CHECK(errno == EAGAIN);

    /* A queue of one: the second completion is lost, and its queue pair fails. */
    struct ibv_cq *narrow = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr init = wanted(IBV_QPT_UD);
    init.send_cq = init.recv_cq = narrow;
    init.sq_sig_all = 1;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    NEED(qp);
    RETURNS(0, to_rts(qp));
    struct ibv_recv_wr receive = {0}, *bad;
    for (int i = 0; i < 3; i++)
        RETURNS(0, ibv_post_recv(qp, &receive, &bad));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    struct pollfd readable = {.fd = context->async_fd, .events = POLLIN};
    RETURNS(1, poll(&readable, 1, 60000));
    RETURNS(0, ibv_get_async_event(context, &event));
    CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == narrow);
    struct ibv_wc wc;
    RETURNS(1, ibv_poll_cq(narrow, 2, &wc));
    RETURNS(0, ibv_destroy_qp(qp));
    /* A queue waits for the acknowledgement of its events. */
    pthread_t thread;
    pthread_create(&thread, NULL, acknowledge_late, &event);
    RETURNS(0, ibv_destroy_cq(narrow));
    CHECK(acknowledged);
    pthread_join(thread, NULL);

    /* A queue does not shrink below the number of its waiting completions. */
    struct ibv_cq *wide = ibv_create_cq(context, 100, NULL, NULL, 0);
    init.send_cq = init.recv_cq = wide;
    qp = ibv_create_qp(pd, &init);
    NEED(qp);
    RETURNS(0, to_init(qp));
    for (int i = 0; i < 3; i++)
        RETURNS(0, ibv_post_recv(qp, &receive, &bad));
    RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    RETURNS(EINVAL, ibv_resize_cq(wide, 2));
    RETURNS(0, ibv_resize_cq(wide, 3));
    for (int i = 0; i < 3; i++)
        RETURNS(1, ibv_poll_cq(wide, 1, &wc));
    RETURNS(0, ibv_destroy_qp(qp));
    RETURNS(0, ibv_destroy_cq(wide));
}

int main(void)
{
    context = open_device();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 100, NULL, NULL, 0);
    NEED(pd && cq);
    devices_and_ports();
    domains();
    memory_regions();
    completion_queues();
    shared_queues();
    creation_of_queue_pairs();
    states();
    posts();
    addresses();
    events();
    RETURNS(0, ibv_destroy_cq(cq));
    RETURNS(0, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
