/*
 * Two of these, joined by a socket at descriptor 0, drive the extended interfaces of libibverbs: completion queues
 * with an iterator, and the work request builder.
 *
 *   extended_verbs peer KIND            does what the other one asks for
 *   extended_verbs SCENARIO KIND        runs a scenario and checks what comes of it
 *
 * KIND is rc, uc or ud. The exit status is 0 when everything was as it must be.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define CHECK(condition)                                                                                   \
	do {                                                                                               \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			exit(1);                                                                           \
		}                                                                                          \
	} while (0)

enum { MEMORY = 1 << 20, DEPTH = 64, SGES = 4, INLINE = 128, PSN = 0xfffff0, QKEY = 0x11111111, GRH = 40 };

static const uint64_t RC_OPS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
			       IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			       IBV_QP_EX_WITH_SEND_WITH_INV;
static const uint64_t UC_OPS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
			       IBV_QP_EX_WITH_SEND_WITH_IMM;
static const uint64_t UD_OPS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

/* Description of one side for the other. */
struct card {
	uint32_t qpn;
	uint32_t rkey;
	uint32_t spare_rkey;
	union ibv_gid gid;
	uint64_t address;
};

/* Request to the peer. */
struct request {
	char what; /* 'r' post receives, 'p' wait for a completion, 'm' show memory, 'b' poll for the next one, 'q' end */
	uint32_t count;
	uint64_t offset;
};

/* A completion, read member by member. */
struct report {
	uint64_t wr_id, ticks, wallclock_ns;
	uint32_t status, opcode, vendor_err, byte_len, imm, qp_num, src_qp, wc_flags, slid;
	uint8_t sl, dlid_path_bits;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr, *spare_mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq_ex *cq;
static struct ibv_qp *qp;
static struct ibv_qp_ex *qpx;
static struct ibv_ah *ah;
static struct card mine, theirs;
static char *memory, spare[4096];
static enum ibv_qp_type kind;
static uint32_t depth = DEPTH;

static void give(const void *bytes, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t now = write(0, (const char *)bytes + done, len - done);
		CHECK(now > 0);
		done += now;
	}
}

static void take(void *bytes, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t now = read(0, (char *)bytes + done, len - done);
		CHECK(now > 0);
		done += now;
	}
}

static uint64_t realtime_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t all_ops(void)
{
	return kind == IBV_QPT_RC ? RC_OPS : kind == IBV_QPT_UC ? UC_OPS : UD_OPS;
}

static struct ibv_qp *create_qp(uint64_t ops, uint32_t depth)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { .max_send_wr = depth, .max_recv_wr = DEPTH, .max_send_sge = SGES, .max_recv_sge = 1,
			 .max_inline_data = INLINE },
		.qp_type = kind,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = pd,
		.send_ops_flags = ops,
	};
	return ibv_create_qp_ex(context, &attr);
}

static struct ibv_cq_ex *create_cq(uint64_t wc_flags, uint32_t comp_mask, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4096, .channel = channel, .wc_flags = wc_flags,
					    .comp_mask = comp_mask, .flags = flags };
	return ibv_create_cq_ex(context, &attr);
}

static void set_up(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	memory = aligned_alloc(4096, MEMORY);
	memset(memory, 0, MEMORY);
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	mr = ibv_reg_mr(pd, memory, MEMORY, all);
	spare_mr = ibv_reg_mr(pd, spare, sizeof spare, all);
	channel = ibv_create_comp_channel(context);
	CHECK(mr && spare_mr && channel);
	cq = create_cq(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			       IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
		       IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	CHECK(cq);
	qp = create_qp(all_ops(), depth);
	CHECK(qp);
	qpx = ibv_qp_to_qp_ex(qp);
	CHECK(qpx && &qpx->qp_base == qp);
}

static void join(void)
{
	mine = (struct card){ .qpn = qp->qp_num, .rkey = mr->rkey, .spare_rkey = spare_mr->rkey,
			      .address = (uintptr_t)memory };
	CHECK(!ibv_query_gid(context, 1, 1, &mine.gid));
	give(&mine, sizeof mine);
	take(&theirs, sizeof theirs);
	struct ibv_ah_attr address = { .is_global = 1, .port_num = 1,
				       .grh = { .dgid = theirs.gid, .sgid_index = 1, .hop_limit = 64 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
						       (kind == IBV_QPT_RC ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0) };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						(kind == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .ah_attr = address, .path_mtu = IBV_MTU_1024,
				     .dest_qp_num = theirs.qpn, .rq_psn = PSN, .max_dest_rd_atomic = 16,
				     .min_rnr_timer = 1 };
	int connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int reliable = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (kind == IBV_QPT_UD ? 0 : connected) |
						(kind == IBV_QPT_RC ? reliable : 0)));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = PSN, .timeout = 18, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 16 };
	reliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (kind == IBV_QPT_RC ? reliable : 0)));
	if (kind == IBV_QPT_UD) {
		ah = ibv_create_ah(pd, &address);
		CHECK(ah);
	}
	/* Both are ready before either sends. */
	give("x", 1);
	char ready;
	take(&ready, 1);
}

static struct report read_all(void)
{
	return (struct report){
		.wr_id = cq->wr_id, .status = cq->status, .opcode = ibv_wc_read_opcode(cq),
		.vendor_err = ibv_wc_read_vendor_err(cq), .byte_len = ibv_wc_read_byte_len(cq),
		.imm = ibv_wc_read_imm_data(cq), .qp_num = ibv_wc_read_qp_num(cq), .src_qp = ibv_wc_read_src_qp(cq),
		.wc_flags = ibv_wc_read_wc_flags(cq), .slid = ibv_wc_read_slid(cq), .sl = ibv_wc_read_sl(cq),
		.dlid_path_bits = ibv_wc_read_dlid_path_bits(cq), .ticks = ibv_wc_read_completion_ts(cq),
		.wallclock_ns = ibv_wc_read_completion_wallclock_ns(cq),
	};
}

static void start_poll(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int result;
	while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	CHECK(!result);
}

static struct report next_completion(void)
{
	start_poll();
	struct report found = read_all();
	ibv_end_poll(cq);
	return found;
}

static void expect_done(uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct report found = next_completion();
	CHECK(found.status == IBV_WC_SUCCESS && found.wr_id == wr_id && found.opcode == opcode);
	CHECK(found.qp_num == qp->qp_num && found.vendor_err == 0);
}

static void expect_nothing(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	for (int i = 0; i < 200; i++)
		CHECK(ibv_start_poll(cq, &attr) == ENOENT);
}

/* The peer. */

static void post_receive(uint64_t wr_id, uint64_t offset)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + offset, .length = 4096, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void poll_until_asked(void)
{
	struct pollfd asked = { .fd = 0, .events = POLLIN };
	struct ibv_wc wc;
	while (poll(&asked, 1, 0) == 0)
		for (int i = 0; i < 1000; i++)
			CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) == 0);
}

static void serve(void)
{
	for (;;) {
		struct request request;
		take(&request, sizeof request);
		switch (request.what) {
		case 'r':
			for (uint32_t i = 0; i < request.count; i++)
				post_receive(request.offset + i * 4096, request.offset + i * 4096);
			give("x", 1);
			break;
		case 'p': {
			struct report found = next_completion();
			give(&found, sizeof found);
			break;
		}
		case 'b':
			poll_until_asked();
			break;
		case 'm':
			give(memory + request.offset, request.count);
			break;
		default:
			return;
		}
	}
}

static void peer_receives(uint32_t count, uint64_t offset)
{
	char done;
	give(&(struct request){ .what = 'r', .count = count, .offset = offset }, sizeof(struct request));
	take(&done, 1);
}

static struct report peer_completion(void)
{
	struct report found;
	give(&(struct request){ .what = 'p' }, sizeof(struct request));
	take(&found, sizeof found);
	return found;
}

static void peer_has(uint64_t offset, const void *bytes, uint32_t len)
{
	static char found[65536];
	CHECK(len <= sizeof found);
	give(&(struct request){ .what = 'm', .count = len, .offset = offset }, sizeof(struct request));
	take(found, len);
	CHECK(!memcmp(found, bytes, len));
}

static void peer_has_zeros(uint64_t offset, uint32_t len)
{
	static const char zeros[65536];
	peer_has(offset, zeros, len);
}

/* Builder calls with the arguments that all scenarios share. */

static void next_request(uint64_t wr_id, unsigned int flags)
{
	qpx->wr_id = wr_id;
	qpx->wr_flags = flags;
}

static void build_write(uint64_t wr_id, unsigned int flags, uint64_t offset, uint32_t len)
{
	next_request(wr_id, flags);
	ibv_wr_rdma_write(qpx, theirs.rkey, theirs.address + offset);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory + offset, len);
}

static void write_now(uint64_t wr_id)
{
	ibv_wr_start(qpx);
	build_write(wr_id, IBV_SEND_SIGNALED, 0, 64);
	CHECK(!ibv_wr_complete(qpx));
}

/* Scenarios. */

static void writes(void)
{
	memset(memory, 'a', 5000);
	ibv_wr_start(qpx);
	build_write(1, IBV_SEND_SIGNALED, 0, 5000);
	CHECK(!ibv_wr_complete(qpx));
	expect_done(1, IBV_WC_RDMA_WRITE);
	if (kind == IBV_QPT_RC)
		peer_has(0, memory, 5000);

	/* Gathered from three places, with immediate data. */
	peer_receives(1, 600000);
	strcpy(memory + 8192, "onetwothree");
	struct ibv_sge list[] = { { (uintptr_t)memory + 8198, 5, mr->lkey }, { (uintptr_t)memory + 8195, 3, mr->lkey },
				  { (uintptr_t)memory + 8192, 3, mr->lkey } };
	ibv_wr_start(qpx);
	next_request(2, IBV_SEND_SIGNALED);
	ibv_wr_rdma_write_imm(qpx, theirs.rkey, theirs.address + 8192, htonl(0x01020304));
	ibv_wr_set_sge_list(qpx, 3, list);
	CHECK(!ibv_wr_complete(qpx));
	expect_done(2, IBV_WC_RDMA_WRITE);
	struct report found = peer_completion();
	CHECK(found.status == IBV_WC_SUCCESS && found.opcode == IBV_WC_RECV_RDMA_WITH_IMM && found.byte_len == 11);
	CHECK(found.wc_flags == IBV_WC_WITH_IMM && found.imm == htonl(0x01020304) && found.wr_id == 600000);
	peer_has(8192, "threetwoone", 11);

	/* Inline: the buffer can be reused at once, and needs no key. */
	char buffer[INLINE];
	memset(buffer, 'i', sizeof buffer);
	struct ibv_data_buf pieces[] = { { "in ", 3 }, { NULL, 0 }, { "pieces", 6 } };
	peer_receives(1, 604096);
	ibv_wr_start(qpx);
	next_request(3, IBV_SEND_SIGNALED);
	ibv_wr_rdma_write(qpx, theirs.rkey, theirs.address + 16384);
	ibv_wr_set_inline_data(qpx, buffer, sizeof buffer);
	memset(buffer, 'j', sizeof buffer);
	next_request(4, IBV_SEND_SIGNALED);
	ibv_wr_rdma_write_imm(qpx, theirs.rkey, theirs.address + 20480, 0);
	ibv_wr_set_inline_data_list(qpx, 3, pieces);
	memset(pieces, 0, sizeof pieces);
	CHECK(!ibv_wr_complete(qpx));
	expect_done(3, IBV_WC_RDMA_WRITE);
	expect_done(4, IBV_WC_RDMA_WRITE);
	CHECK(peer_completion().byte_len == 9);
	memset(buffer, 'i', sizeof buffer);
	peer_has(16384, buffer, sizeof buffer);
	peer_has(20480, "in pieces", 9);
}

static void sends(void)
{
	const uint32_t head = kind == IBV_QPT_UD ? GRH : 0;
	const unsigned int flags = kind == IBV_QPT_UD ? IBV_WC_GRH : 0;
	peer_receives(3, 0);
	strcpy(memory, "a message");
	ibv_wr_start(qpx);
	next_request(1, IBV_SEND_SIGNALED);
	ibv_wr_send(qpx);
	if (ah)
		ibv_wr_set_ud_addr(qpx, ah, theirs.qpn, QKEY);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 10);
	next_request(2, 0);
	ibv_wr_send_imm(qpx, htonl(77));
	ibv_wr_set_inline_data(qpx, "short", 6);
	if (ah)
		ibv_wr_set_ud_addr(qpx, ah, theirs.qpn, QKEY);
	/* Without data. */
	next_request(3, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	ibv_wr_send_imm(qpx, htonl(78));
	if (ah)
		ibv_wr_set_ud_addr(qpx, ah, theirs.qpn, QKEY);
	ibv_wr_set_sge_list(qpx, 0, NULL);
	CHECK(!ibv_wr_complete(qpx));
	expect_done(1, IBV_WC_SEND);
	expect_done(3, IBV_WC_SEND);

	struct report found = peer_completion();
	CHECK(found.status == IBV_WC_SUCCESS && found.opcode == IBV_WC_RECV && found.wr_id == 0);
	CHECK(found.byte_len == head + 10 && found.wc_flags == flags && found.qp_num == theirs.qpn);
	/* Of a datagram the type of its packet: UDP over IPv4. */
	CHECK(found.src_qp == mine.qpn && !found.slid && found.sl == (ah ? 10 : 0));
	CHECK(!found.dlid_path_bits);
	found = peer_completion();
	CHECK(found.byte_len == head + 6 && found.wc_flags == (flags | IBV_WC_WITH_IMM) && found.imm == htonl(77));
	found = peer_completion();
	CHECK(found.byte_len == head && found.imm == htonl(78));
	peer_has(head, "a message", 10);
	peer_has(4096 + head, "short", 6);

	if (kind == IBV_QPT_UD) {
		/* A datagram needs an address. */
		ibv_wr_start(qpx);
		next_request(4, IBV_SEND_SIGNALED);
		ibv_wr_send(qpx);
		ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 10);
		CHECK(ibv_wr_complete(qpx) == EINVAL);
		expect_nothing();
	}
}

static void invalidates(void)
{
	peer_receives(2, 0);
	ibv_wr_start(qpx);
	next_request(1, IBV_SEND_SIGNALED);
	ibv_wr_send_inv(qpx, theirs.spare_rkey);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 8);
	CHECK(!ibv_wr_complete(qpx));
	expect_done(1, IBV_WC_SEND);
	struct report found = peer_completion();
	CHECK(found.wc_flags == IBV_WC_WITH_INV && found.imm == theirs.spare_rkey);
}

static void reads_and_atomics(void)
{
	uint64_t *words = (uint64_t *)memory;
	words[0] = 40;
	ibv_wr_start(qpx);
	build_write(1, 0, 0, 8);
	next_request(2, IBV_SEND_SIGNALED);
	ibv_wr_atomic_fetch_add(qpx, theirs.rkey, theirs.address, 2);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)(words + 1), 8);
	next_request(3, IBV_SEND_SIGNALED);
	ibv_wr_atomic_cmp_swp(qpx, theirs.rkey, theirs.address, 42, 7);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)(words + 2), 8);
	next_request(4, IBV_SEND_SIGNALED);
	ibv_wr_atomic_cmp_swp(qpx, theirs.rkey, theirs.address, 42, 9);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)(words + 3), 8);
	next_request(5, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
	ibv_wr_rdma_read(qpx, theirs.rkey, theirs.address);
	struct ibv_sge halves[] = { { (uintptr_t)(words + 4), 4, mr->lkey }, { (uintptr_t)(words + 4) + 4, 4, mr->lkey } };
	ibv_wr_set_sge_list(qpx, 2, halves);
	CHECK(!ibv_wr_complete(qpx));
	expect_done(2, IBV_WC_FETCH_ADD);
	expect_done(3, IBV_WC_COMP_SWAP);
	expect_done(4, IBV_WC_COMP_SWAP);
	expect_done(5, IBV_WC_RDMA_READ);
	CHECK(words[1] == 40 && words[2] == 42 && words[3] == 7 && words[4] == 7);
}

/* Repeated lists as long as the queue; only the last request of each is signaled. */
static void lists(void)
{
	for (int i = 0; i < 65536; i++)
		memory[i] = i * 7 + i / 256;
	for (int round = 0; round < 50; round++) {
		ibv_wr_start(qpx);
		for (int i = 0; i < DEPTH; i++) {
			uint64_t offset = (round % 2) * 32768 + i * 512;
			unsigned int flags = i == DEPTH - 1 ? IBV_SEND_SIGNALED : 0;
			if (i % 3) {
				build_write(round * 1000 + i, flags, offset, 512);
			} else {
				next_request(round * 1000 + i, flags);
				ibv_wr_rdma_write(qpx, theirs.rkey, theirs.address + offset);
				ibv_wr_set_inline_data(qpx, memory + offset, INLINE);
				next_request(0, 0);
			}
		}
		CHECK(!ibv_wr_complete(qpx));
		expect_done(round * 1000 + DEPTH - 1, IBV_WC_RDMA_WRITE);
	}
	expect_nothing();
	for (int i = 0; i < 128; i++)
		peer_has(i * 512, memory + i * 512, i % DEPTH % 3 ? 512 : INLINE);
}

static void aborts(void)
{
	memset(memory, 'z', 4096);
	ibv_wr_start(qpx);
	build_write(1, IBV_SEND_SIGNALED, 0, 4096);
	ibv_wr_abort(qpx);
	expect_nothing();
	/* A mistake is cleared too. */
	ibv_wr_start(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, 0, 0);
	ibv_wr_abort(qpx);
	/* An empty list posts nothing. */
	ibv_wr_start(qpx);
	CHECK(!ibv_wr_complete(qpx));
	expect_nothing();
	ibv_wr_start(qpx);
	build_write(2, IBV_SEND_SIGNALED, 8192, 1);
	CHECK(!ibv_wr_complete(qpx));
	expect_done(2, IBV_WC_RDMA_WRITE);
	peer_has_zeros(0, 4096);
}

static void unaligned_atomic(void)
{
	next_request(9, 0);
	ibv_wr_atomic_fetch_add(qpx, theirs.rkey, theirs.address + 4, 2);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 8);
}

static void short_atomic(void)
{
	ibv_wr_atomic_fetch_add(qpx, theirs.rkey, theirs.address, 2);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 4);
}

static void too_much_inline(void)
{
	static char buffer[INLINE + 1];
	struct ibv_data_buf pieces[] = { { buffer, 64 }, { buffer, SIZE_MAX - 10 } };
	ibv_wr_rdma_write(qpx, theirs.rkey, theirs.address);
	ibv_wr_set_inline_data(qpx, buffer, sizeof buffer);
	ibv_wr_set_inline_data_list(qpx, 2, pieces);
}

static void too_many_sges(void)
{
	struct ibv_sge list[SGES + 1] = { { (uintptr_t)memory, 1, mr->lkey } };
	ibv_wr_rdma_write(qpx, theirs.rkey, theirs.address);
	ibv_wr_set_sge_list(qpx, SGES + 1, list);
}

static void too_long(void)
{
	struct ibv_sge list[] = { { (uintptr_t)memory, 1u << 31, mr->lkey }, { (uintptr_t)memory, 1, mr->lkey } };
	ibv_wr_rdma_write(qpx, theirs.rkey, theirs.address);
	ibv_wr_set_sge_list(qpx, 2, list);
}

static void inline_read(void)
{
	ibv_wr_rdma_read(qpx, theirs.rkey, theirs.address);
	ibv_wr_set_inline_data(qpx, memory, 8);
}

static void missing_list(void)
{
	ibv_wr_send(qpx);
	CHECK(!qpx->wr_set_ud_addr);
	ibv_wr_set_sge_list(qpx, 1, NULL);
}

static void too_many_requests(void)
{
	for (int i = 0; i < DEPTH; i++)
		build_write(i, 0, 0, 1);
}

static void started_twice(void)
{
	ibv_wr_start(qpx);
	build_write(1, IBV_SEND_SIGNALED, 0, 64);
}

/* After a mistake anywhere in a list, none of it is posted. */
static void mistakes(void)
{
	static const struct {
		void (*make)(void);
		int reason;
	} all[] = { { unaligned_atomic, EINVAL }, { short_atomic, EINVAL },  { too_much_inline, EINVAL },
		    { too_many_sges, EINVAL },	  { too_long, EINVAL },	     { inline_read, EINVAL },
		    { missing_list, EINVAL }, { too_many_requests, ENOMEM }, { started_twice, EINVAL } };
	memset(memory, 'z', 4096);
	for (unsigned int i = 0; i < sizeof all / sizeof *all; i++) {
		ibv_wr_start(qpx);
		build_write(1, IBV_SEND_SIGNALED, 0, 64);
		all[i].make();
		build_write(2, IBV_SEND_SIGNALED, 0, 64);
		int reason = ibv_wr_complete(qpx);
		if (reason != all[i].reason) {
			fprintf(stderr, "mistake %u: %d\n", i, reason);
			exit(1);
		}
		expect_nothing();
	}
	peer_has_zeros(0, 4096);

	/* Outside of start and completion. */
	build_write(3, IBV_SEND_SIGNALED, 0, 64);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	ibv_wr_abort(qpx);
	expect_nothing();
	write_now(4);
	expect_done(4, IBV_WC_RDMA_WRITE);
}

/* A list that exceeds the queue is not posted in part. */
static void full_queue(void)
{
	/* The peer has no receives, so that these wait. */
	for (int i = 0; i < DEPTH - 6; i++) {
		ibv_wr_start(qpx);
		next_request(i, IBV_SEND_SIGNALED);
		ibv_wr_send(qpx);
		CHECK(!ibv_wr_complete(qpx));
	}
	ibv_wr_start(qpx);
	for (int i = 0; i < 7; i++)
		build_write(1000 + i, IBV_SEND_SIGNALED, 0, 64);
	CHECK(ibv_wr_complete(qpx) == ENOMEM);
	ibv_wr_start(qpx);
	for (int i = 0; i < 6; i++)
		build_write(2000 + i, IBV_SEND_SIGNALED, 0, 64);
	CHECK(!ibv_wr_complete(qpx));
	peer_receives(DEPTH - 6, 0);
	for (int i = 0; i < DEPTH - 6; i++)
		expect_done(i, IBV_WC_SEND);
	for (int i = 0; i < 6; i++)
		expect_done(2000 + i, IBV_WC_RDMA_WRITE);
	expect_nothing();
}

static void creation(void)
{
	static const uint64_t nowhere[] = { IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_TSO,
					    1ull << 40 };
	for (int i = 0; i < 4; i++) {
		CHECK(!create_qp(nowhere[i] | IBV_QP_EX_WITH_SEND, 4));
		CHECK(errno == EOPNOTSUPP);
	}
	if (kind != IBV_QPT_RC)
		CHECK(!create_qp(IBV_QP_EX_WITH_RDMA_READ, 4) && errno == EOPNOTSUPP);
	struct ibv_qp *plain = create_qp(0, 4);
	CHECK(plain && !ibv_qp_to_qp_ex(plain));
	struct ibv_qp *some = create_qp(IBV_QP_EX_WITH_SEND, 4);
	struct ibv_qp_ex *view = some ? ibv_qp_to_qp_ex(some) : NULL;
	CHECK(view && view->wr_send && view->wr_start && view->wr_set_sge_list);
	CHECK(!view->wr_send_imm && !view->wr_rdma_read && !view->wr_local_inv && !view->wr_set_xrc_srqn);
	CHECK(!!view->wr_set_ud_addr == (kind == IBV_QPT_UD));
	/* Not ready to send. */
	ibv_wr_start(view);
	ibv_wr_send(view);
	CHECK(ibv_wr_complete(view) == EINVAL);
	CHECK(!ibv_destroy_qp(plain) && !ibv_destroy_qp(some));

	static const uint64_t unreadable[] = { IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_TM_INFO,
					       1 << 20 };
	for (int i = 0; i < 4; i++)
		CHECK(!create_cq(unreadable[i], 0, 0) && errno == EOPNOTSUPP);
	CHECK(!create_cq(0, 1 << 5, 0) && errno == EOPNOTSUPP);
	CHECK(!create_cq(0, IBV_CQ_INIT_ATTR_MASK_FLAGS, 1 << 5) && errno == EOPNOTSUPP);
	CHECK(!create_cq(0, IBV_CQ_INIT_ATTR_MASK_PD, 0) && errno == EINVAL);
	struct ibv_cq_init_attr_ex none = { .cqe = 0 };
	CHECK(!ibv_create_cq_ex(context, &none) && errno == EINVAL);
	struct ibv_parent_domain_init_attr parent_attr = { .pd = pd };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &parent_attr);
	CHECK(parent);
	struct ibv_cq_init_attr_ex attr = { .cqe = 3, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
					    .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED, .parent_domain = parent,
					    .wc_flags = IBV_WC_EX_WITH_IMM };
	struct ibv_cq_ex *small = ibv_create_cq_ex(context, &attr);
	CHECK(small && small->cqe >= 3 && small->read_imm_data && !small->read_byte_len && !small->read_completion_ts);
	struct ibv_poll_cq_attr poll_attr = { 0 };
	CHECK(ibv_start_poll(small, &poll_attr) == ENOENT);
	CHECK(ibv_next_poll(small) == EINVAL);
	poll_attr.comp_mask = 1;
	CHECK(ibv_start_poll(small, &poll_attr) == EINVAL);
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(small)) && !ibv_dealloc_pd(parent));
}

/* All ways of polling, alternating on one queue: no completion is lost, duplicated or reordered. */
static void iteration(void)
{
	enum { COUNT = 60 };
	struct ibv_poll_cq_attr attr = { 0 };
	for (int i = 0; i < COUNT; i++)
		write_now(i);
	/* Most of them wait when the polling begins. */
	usleep(100000);
	uint64_t last;
	uint64_t expected = 0;
	struct ibv_wc wc[8];
	while (expected < COUNT) {
		start_poll();
		CHECK(cq->wr_id == expected++ && cq->status == IBV_WC_SUCCESS);
		CHECK(ibv_start_poll(cq, &attr) == EINVAL);
		if (expected < COUNT) {
			int result;
			while ((result = ibv_next_poll(cq)) == ENOENT)
				;
			CHECK(!result && cq->wr_id == expected++);
		}
		last = cq->wr_id;
		/* In the middle of the iteration, which stays where it is. */
		int found = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 3, wc);
		CHECK(found >= 0);
		for (int i = 0; i < found; i++)
			CHECK(wc[i].wr_id == expected++ && wc[i].opcode == IBV_WC_RDMA_WRITE);
		CHECK(cq->wr_id == last && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
		ibv_end_poll(cq);
		found = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 8, wc);
		CHECK(found >= 0);
		for (int i = 0; i < found; i++)
			CHECK(wc[i].wr_id == expected++);
	}
	expect_nothing();
	CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 8, wc) == 0);
	/* An iteration may wait for later completions. */
	write_now(100);
	start_poll();
	CHECK(cq->wr_id == 100);
	CHECK(ibv_next_poll(cq) == ENOENT && cq->wr_id == 100);
	write_now(101);
	while (ibv_next_poll(cq) == ENOENT)
		;
	CHECK(cq->wr_id == 101);
	ibv_end_poll(cq);
}

static void timestamps(void)
{
	struct ibv_device_attr_ex device;
	CHECK(!ibv_query_device_ex(context, NULL, &device));
	CHECK(device.completion_timestamp_mask && device.hca_core_clock);
	struct ibv_values_ex before = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, after = before;
	CHECK(!ibv_query_rt_values_ex(context, &before) && before.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	uint64_t wallclock_before = realtime_ns(), ticks = 0;
	int64_t offset = 0;
	for (int i = 0; i < 200; i++) {
		write_now(i);
		struct report found = next_completion();
		CHECK(found.ticks > ticks && found.wallclock_ns >= wallclock_before);
		CHECK(found.wallclock_ns <= realtime_ns());
		ticks = found.ticks;
		if (!i) {
			CHECK(ticks >= (uint64_t)before.raw_clock.tv_nsec);
			offset = found.wallclock_ns - ticks * 1000000ull / device.hca_core_clock;
		}
		int64_t drift = found.wallclock_ns - ticks * 1000000ull / device.hca_core_clock - offset;
		CHECK(llabs(drift) < 100000000);
	}
	CHECK(!ibv_query_rt_values_ex(context, &after));
	CHECK(ticks <= (uint64_t)after.raw_clock.tv_nsec);
	after.comp_mask = 0;
	CHECK(!ibv_query_rt_values_ex(context, &after) && after.comp_mask == 0);
	/* The clock runs at the device's reported rate. Between any two calls the machine may stop this process. */
	uint64_t before_first = realtime_ns();
	CHECK(!ibv_query_rt_values_ex(context, (before.comp_mask = 1, &before)));
	uint64_t after_first = realtime_ns();
	usleep(100000);
	uint64_t before_second = realtime_ns();
	CHECK(!ibv_query_rt_values_ex(context, (after.comp_mask = 1, &after)));
	uint64_t after_second = realtime_ns();
	double by_ticks = (after.raw_clock.tv_nsec - before.raw_clock.tv_nsec) / (double)device.hca_core_clock * 1e6;
	CHECK(by_ticks > (before_second - after_first) * 0.5 && by_ticks < (after_second - before_first) * 2);
}

static void await_event(void)
{
	struct ibv_cq *found;
	void *found_context;
	CHECK(!ibv_get_cq_event(channel, &found, &found_context));
	CHECK(found == ibv_cq_ex_to_cq(cq));
	ibv_ack_cq_events(found, 1);
}

/* Completions that the iterator keeps are not lost between arming and sleeping. */
static void events(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	for (int round = 0; round < 20; round++) {
		CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
		for (int i = 0; i < 20; i++)
			write_now(i);
		await_event();
		uint64_t expected = 0;
		start_poll();
		CHECK(cq->wr_id == expected++);
		ibv_end_poll(cq);
		CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
		while (expected < 20) {
			int result = ibv_start_poll(cq, &attr);
			if (result == ENOENT) {
				/* Missing completions arrive after the arming, and raise an event. */
				await_event();
				CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
				continue;
			}
			CHECK(!result);
			do
				CHECK(cq->wr_id == expected++);
			while (!ibv_next_poll(cq));
			ibv_end_poll(cq);
		}
		/* Leave no event for the next round: this one arrives in any case. */
		write_now(1000);
		await_event();
		expect_done(1000, IBV_WC_RDMA_WRITE);
		struct pollfd waiting = { .fd = channel->fd, .events = POLLIN };
		while (poll(&waiting, 1, 0) > 0)
			await_event();
	}
}

enum { LISTS = 200, IN_A_LIST = 4, POSTERS = 3 };

static void *post_lists(void *argument)
{
	uint64_t me = (uintptr_t)argument;
	for (int list = 0; list < LISTS; list++) {
		int result;
		do {
			ibv_wr_start(qpx);
			for (int i = 0; i < IN_A_LIST; i++) {
				build_write(me << 32 | (uint64_t)list << 8 | i, IBV_SEND_SIGNALED, 0, 64);
				/* Lets other threads run. */
				sched_yield();
			}
			result = ibv_wr_complete(qpx);
			if (result)
				sched_yield();
		} while (result == ENOMEM);
		CHECK(!result);
	}
	return NULL;
}

/* Lists of several threads do not mix. */
static void posting_threads(void)
{
	pthread_t threads[POSTERS];
	for (uintptr_t i = 0; i < POSTERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, post_lists, (void *)i));
	uint64_t lists_of[POSTERS] = { 0 };
	for (int done = 0; done < POSTERS * LISTS; done++) {
		uint64_t first = next_completion().wr_id;
		CHECK((first & 0xff) == 0 && first >> 32 < POSTERS);
		CHECK((first >> 8 & 0xffffff) == lists_of[first >> 32]++);
		for (int i = 1; i < IN_A_LIST; i++)
			CHECK(next_completion().wr_id == first + i);
	}
	for (int i = 0; i < POSTERS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	expect_nothing();
}

enum { POLLED = 4000 };
static unsigned char seen[POLLED];
static int polled;

static void *poll_some(void *argument)
{
	struct ibv_poll_cq_attr attr = { 0 };
	uint64_t turn = (uintptr_t)argument;
	while (__atomic_load_n(&polled, __ATOMIC_SEQ_CST) < POLLED) {
		if (turn++ % 3 == 0) {
			struct ibv_wc wc[5];
			int found = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 5, wc);
			CHECK(found >= 0);
			for (int i = 0; i < found; i++) {
				CHECK(wc[i].status == IBV_WC_SUCCESS);
				__atomic_add_fetch(&seen[wc[i].wr_id], 1, __ATOMIC_SEQ_CST);
			}
			__atomic_add_fetch(&polled, found, __ATOMIC_SEQ_CST);
			continue;
		}
		if (ibv_start_poll(cq, &attr))
			continue;
		int count = 0;
		do {
			uint64_t wr_id = cq->wr_id;
			CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
			if (count % 4 == 1)
				sched_yield();
			/* Nobody else has moved the iterator. */
			CHECK(cq->wr_id == wr_id);
			__atomic_add_fetch(&seen[wr_id], 1, __ATOMIC_SEQ_CST);
			__atomic_add_fetch(&polled, 1, __ATOMIC_SEQ_CST);
		} while (++count < 7 && !ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	return NULL;
}

/* Threads that poll one queue in all ways get each completion once. */
static void polling_threads(void)
{
	pthread_t threads[3];
	for (uintptr_t i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL, poll_some, (void *)i));
	for (int i = 0; i < POLLED;) {
		ibv_wr_start(qpx);
		build_write(i, IBV_SEND_SIGNALED, 0, 64);
		int result = ibv_wr_complete(qpx);
		CHECK(!result || result == ENOMEM);
		i += !result;
	}
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
	for (int i = 0; i < POLLED; i++)
		CHECK(seen[i] == 1);
	expect_nothing();
}

/* Messages per second by way of posting, and the processor time per message. */

static uint64_t processor_ns(void)
{
	struct timespec used;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return used.tv_sec * 1000000000ull + used.tv_nsec;
}

enum { BATCH = 16, BYTES = 64, RATE_DEPTH = 512 };

static void post_plain(int a_list)
{
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr[BATCH], *bad;
	for (int i = 0; i < BATCH; i++)
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					      .next = a_list && i + 1 < BATCH ? &wr[i + 1] : NULL,
					      .send_flags = i + 1 == BATCH ? IBV_SEND_SIGNALED : 0,
					      .wr.rdma = { theirs.address, theirs.rkey } };
	for (int i = 0; i < (a_list ? 1 : BATCH); i++)
		CHECK(!ibv_post_send(qp, &wr[i], &bad));
}

static void post_singly(void)
{
	post_plain(0);
}

static void post_a_list(void)
{
	post_plain(1);
}

static void post_built(void)
{
	ibv_wr_start(qpx);
	for (int i = 0; i < BATCH; i++)
		build_write(i, i + 1 == BATCH ? IBV_SEND_SIGNALED : 0, 0, BYTES);
	CHECK(!ibv_wr_complete(qpx));
}

static void post_built_inline(void)
{
	ibv_wr_start(qpx);
	for (int i = 0; i < BATCH; i++) {
		next_request(i, i + 1 == BATCH ? IBV_SEND_SIGNALED : 0);
		ibv_wr_rdma_write(qpx, theirs.rkey, theirs.address);
		ibv_wr_set_inline_data(qpx, memory, BYTES);
	}
	CHECK(!ibv_wr_complete(qpx));
}

static void post_built_singly(void)
{
	for (int i = 0; i < BATCH; i++) {
		ibv_wr_start(qpx);
		build_write(i, i + 1 == BATCH ? IBV_SEND_SIGNALED : 0, 0, BYTES);
		CHECK(!ibv_wr_complete(qpx));
	}
}

static int by_plain_polling(void)
{
	struct ibv_wc wc[BATCH];
	return ibv_poll_cq(ibv_cq_ex_to_cq(cq), BATCH, wc);
}

static int by_iterator(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	if (ibv_start_poll(cq, &attr))
		return 0;
	int found = 1;
	while (!ibv_next_poll(cq))
		found++;
	ibv_end_poll(cq);
	return found;
}

static void rate(void)
{
	static const struct {
		const char *name;
		void (*post)(void);
		int (*poll)(void);
	} ways[] = { { "ibv_post_send, one by one", post_singly, by_plain_polling },
		     { "ibv_post_send, lists of 16", post_a_list, by_plain_polling },
		     { "ibv_wr_*, one by one", post_built_singly, by_plain_polling },
		     { "ibv_wr_*, lists of 16", post_built, by_plain_polling },
		     { "ibv_wr_*, lists of 16, iterator", post_built, by_iterator },
		     { "ibv_wr_*, lists of 16, inline", post_built_inline, by_plain_polling } };
	enum { WAYS = sizeof ways / sizeof *ways, ROUNDS = 5 };
	const uint64_t round_ns = 400000000;
	double found[ROUNDS][WAYS], processor[ROUNDS][WAYS];
	for (int round = 0; round < ROUNDS; round++)
		for (int way = 0; way < WAYS; way++) {
			uint64_t posted = 0, done = 0, begun, processor_begun = processor_ns();
			give(&(struct request){ .what = 'b' }, sizeof(struct request));
			begun = realtime_ns();
			do
				for (int i = 0; i < 100; i++) {
					for (; posted - done > RATE_DEPTH - BATCH; done += BATCH * ways[way].poll())
						;
					ways[way].post();
					posted += BATCH;
				}
			while (realtime_ns() - begun < round_ns);
			for (; done < posted; done += BATCH * ways[way].poll())
				;
			found[round][way] = posted * 1e3 / (realtime_ns() - begun);
			processor[round][way] = (double)(processor_ns() - processor_begun) / posted;
		}
	printf("64-byte WRITEs, %d rounds: million per second; nanoseconds of this process's processor time each\n", ROUNDS);
	for (int way = 0; way < WAYS; way++) {
		printf("%-32s", ways[way].name);
		for (int round = 0; round < ROUNDS; round++)
			printf(" %6.3f", found[round][way]);
		printf(" ;");
		for (int round = 0; round < ROUNDS; round++)
			printf(" %5.0f", processor[round][way]);
		printf("\n");
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{ "writes", writes },
		{ "sends", sends },
		{ "invalidates", invalidates },
		{ "reads_and_atomics", reads_and_atomics },
		{ "lists", lists },
		{ "aborts", aborts },
		{ "mistakes", mistakes },
		{ "full_queue", full_queue },
		{ "creation", creation },
		{ "iteration", iteration },
		{ "timestamps", timestamps },
		{ "events", events },
		{ "posting_threads", posting_threads },
		{ "polling_threads", polling_threads },
		{ "rate", rate },
		{ "peer", serve },
	};
	CHECK(argc == 3);
	kind = !strcmp(argv[2], "rc") ? IBV_QPT_RC : !strcmp(argv[2], "uc") ? IBV_QPT_UC : IBV_QPT_UD;
	depth = strcmp(argv[1], "rate") ? DEPTH : RATE_DEPTH;
	set_up();
	join();
	for (unsigned int i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
		if (strcmp(argv[1], scenarios[i].name))
			continue;
		scenarios[i].run();
		if (scenarios[i].run != serve)
			give(&(struct request){ .what = 'q' }, sizeof(struct request));
		CHECK(!ah || !ibv_destroy_ah(ah));
		CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
		CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dereg_mr(spare_mr));
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
		return 0;
	}
	fprintf(stderr, "no such scenario\n");
	return 1;
}
