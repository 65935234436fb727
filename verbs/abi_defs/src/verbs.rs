//! Objects, their attributes, work requests and completions:
//! `infiniband/verbs.h`.
//!
//! The objects (`ibv_pd`, `ibv_qp`, …) are the parts that programs read, and the first bytes of a
//! provider's own objects. The members that only the library uses in C (`mutex`, `cond`,
//! `events_completed`, `handle`) exist for their size; an implementation need not use them.

#![allow(
    missing_docs,
    reason = "the members carry their C names, which the verbs manual pages document"
)]

use core::ffi::{c_int, c_uint, c_void};

use crate::{
    __be16, __be32, ibv_context, ibv_cq_ex, ibv_gid, ibv_mig_state, ibv_mtu, ibv_mw_type,
    ibv_qp_state, ibv_qp_type, ibv_srq_type, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

c_opaque! {
    /// A work queue, of raw packet queue pairs.
    ibv_wq;
    /// A receive work queue indirection table.
    ibv_rwq_ind_table;
}

c_structs! { verbs_structs;
    /// A work completion.
    #[derive(Clone, Copy)]
    struct ibv_wc {
        wr_id: u64,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        vendor_err: u32,
        byte_len: u32,
        imm: ibv_wc_imm => anon,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// A protection domain.
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// Attributes of a thread domain.
    #[derive(Debug, Clone, Copy)]
    struct ibv_td_init_attr {
        comp_mask: u32,
    }

    /// A thread domain.
    struct ibv_td {
        context: *mut ibv_context,
    }

    /// Attributes of a parent domain: a PD, a thread domain, and allocators.
    #[derive(Debug, Clone, Copy)]
    struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: cfn!(*mut ibv_pd, *mut c_void, usize, usize, u64 => *mut c_void),
        free: cfn!(*mut ibv_pd, *mut c_void, *mut c_void, u64),
        pd_context: *mut c_void,
    }

    /// Attributes of an XRC domain.
    #[derive(Debug, Clone, Copy)]
    struct ibv_xrcd_init_attr {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }

    /// An XRC domain.
    struct ibv_xrcd {
        context: *mut ibv_context,
    }

    /// A memory region.
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// A memory window.
    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: ibv_mw_type,
    }

    /// Memory to which a memory window is bound.
    #[derive(Debug, Clone, Copy)]
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// A type 1 bind request.
    #[derive(Debug, Clone, Copy)]
    struct ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }

    /// The GRH fields of an address.
    #[derive(Clone, Copy)]
    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// The 40 bytes before a received datagram. With RoCEv2 over IPv4 the
    /// IPv4 header occupies the last 20.
    #[derive(Clone, Copy)]
    struct ibv_grh {
        version_tclass_flow: __be32,
        paylen: __be16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    /// An address.
    #[derive(Clone, Copy)]
    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// An address handle.
    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    /// Size and limit of a shared receive queue.
    #[derive(Debug, Clone, Copy)]
    struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// How to create a shared receive queue.
    #[derive(Debug, Clone, Copy)]
    struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    /// Tag matching limits.
    #[derive(Debug, Clone, Copy)]
    struct ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    /// How to create a shared receive queue, extended.
    #[derive(Debug, Clone, Copy)]
    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: ibv_srq_type,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    /// A shared receive queue.
    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    /// Queue sizes of a queue pair.
    #[derive(Debug, Clone, Copy)]
    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// How to create a queue pair.
    #[derive(Debug, Clone, Copy)]
    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
    }

    /// Receive hashing, of raw packet queue pairs.
    #[derive(Debug, Clone, Copy)]
    struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    /// How to create a queue pair, extended. Begins as [`ibv_qp_init_attr`].
    #[derive(Debug, Clone, Copy)]
    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    /// How to open a shared queue pair.
    #[derive(Debug, Clone, Copy)]
    struct ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: ibv_qp_type,
    }

    /// Attributes of a queue pair.
    #[derive(Clone, Copy)]
    struct ibv_qp_attr {
        qp_state: ibv_qp_state,
        cur_qp_state: ibv_qp_state,
        path_mtu: ibv_mtu,
        path_mig_state: ibv_mig_state,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    /// Pacing of a queue pair: kbit/s, and bytes.
    #[derive(Debug, Clone, Copy)]
    struct ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }

    /// A buffer of inline data.
    #[derive(Debug, Clone, Copy)]
    struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    /// A scatter/gather element.
    #[derive(Debug, Clone, Copy)]
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    #[derive(Debug, Clone, Copy)]
    struct ibv_send_wr_rdma as "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" {
        remote_addr: u64,
        rkey: u32,
    }

    #[derive(Debug, Clone, Copy)]
    struct ibv_send_wr_atomic as "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    #[derive(Debug, Clone, Copy)]
    struct ibv_send_wr_ud as "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    #[derive(Debug, Clone, Copy)]
    struct ibv_send_wr_xrc as "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)" {
        remote_srqn: u32,
    }

    #[derive(Debug, Clone, Copy)]
    struct ibv_send_wr_bind_mw as "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    #[derive(Debug, Clone, Copy)]
    struct ibv_send_wr_tso as "__typeof__(((struct ibv_send_wr *)0)->tso)" {
        hdr: *mut c_void,
        hdr_sz: u16,
        mss: u16,
    }

    /// A send work request. Old programs pass shorter ones: a member may be read only if the opcode
    /// or the queue pair's type defines it.
    #[derive(Clone, Copy)]
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        imm: ibv_send_wr_imm => anon,
        wr: ibv_send_wr_wr,
        qp_type: ibv_send_wr_qp_type,
        tail: ibv_send_wr_tail => anon,
    }

    /// A receive work request.
    #[derive(Debug, Clone, Copy)]
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    /// A queue pair. `ibv_modify_qp` keeps `state` current.
    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: ibv_qp_state,
        qp_type: ibv_qp_type,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    /// Enhanced connection establishment options.
    #[derive(Debug, Clone, Copy)]
    struct ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }

    /// A completion event channel. Programs poll `fd`.
    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    /// A completion queue. `cqe` is the capacity granted.
    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// Attributes of `ibv_start_poll`.
    #[derive(Debug, Clone, Copy)]
    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    /// Result of `read_tm_info`.
    #[derive(Debug, Clone, Copy)]
    struct ibv_wc_tm_info {
        tag: u64,
        r#priv: u32,
    }

    /// Completion moderation; period in microseconds.
    #[derive(Debug, Clone, Copy)]
    struct ibv_moderate_cq {
        cq_count: u16,
        cq_period: u16,
    }

    /// Attributes for `ibv_modify_cq`.
    #[derive(Debug, Clone, Copy)]
    struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }

    /// How to create a completion queue, extended.
    #[derive(Debug, Clone, Copy)]
    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    /// Clock values of a device.
    #[derive(Debug, Clone, Copy)]
    struct ibv_values_ex {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }
}

c_unions! { verbs_unions;
    /// The member `wr` of [`ibv_send_wr`]: by opcode, or `ud` by queue pair type.
    union ibv_send_wr_wr as "__typeof__(((struct ibv_send_wr *)0)->wr)" {
        rdma: ibv_send_wr_rdma,
        atomic: ibv_send_wr_atomic,
        ud: ibv_send_wr_ud,
    }

    /// The member `qp_type` of [`ibv_send_wr`].
    union ibv_send_wr_qp_type as "__typeof__(((struct ibv_send_wr *)0)->qp_type)" {
        xrc: ibv_send_wr_xrc,
    }
}

c_anonymous_unions! { verbs_anonymous_unions;
    /// Immediate data, or the key a SEND with invalidate named.
    union ibv_wc_imm in ibv_wc.imm {
        imm_data: __be32,
        invalidated_rkey: u32,
    }

    /// Immediate data, or the key to invalidate.
    union ibv_send_wr_imm in ibv_send_wr.imm {
        imm_data: __be32,
        invalidate_rkey: u32,
    }

    /// Operands of `IBV_WR_BIND_MW` and `IBV_WR_TSO`.
    union ibv_send_wr_tail in ibv_send_wr.tail {
        bind_mw: ibv_send_wr_bind_mw,
        tso: ibv_send_wr_tso,
    }
}

/// Converts an extended completion queue to the plain one at its start: `ibv_cq_ex_to_cq`.
#[must_use]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}
