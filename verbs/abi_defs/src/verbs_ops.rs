//! The tables that inline functions of `infiniband/verbs.h` call through.
//!
//! Programs call these slots without any symbol. Slots of [`ibv_context_ops`] other than `alloc_mw`
//! are called unchecked and must be present; slots of [`verbs_context`] are called if not null,
//! except `close_xrcd`; those of [`ibv_qp_ex`] and [`ibv_cq_ex`] are called unchecked.

#![allow(
    missing_docs,
    reason = "the slots carry their C names, which the verbs manual pages document"
)]

use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;

use crate::{
    __be32, _compat_ibv_port_attr, ibv_advise_mr_advice, ibv_ah, ibv_comp_channel, ibv_cq,
    ibv_cq_init_attr_ex, ibv_data_buf, ibv_device, ibv_device_attr, ibv_device_attr_ex,
    ibv_modify_cq_attr, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type,
    ibv_parent_domain_init_attr, ibv_pd, ibv_poll_cq_attr, ibv_port_attr, ibv_qp,
    ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input,
    ibv_recv_wr, ibv_rwq_ind_table, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td,
    ibv_td_init_attr, ibv_values_ex, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wc_tm_info, ibv_wq,
    ibv_xrcd, ibv_xrcd_init_attr,
};

c_opaque! {
    /// A set of flow counters.
    ibv_counters;
    /// Attributes of counters.
    ibv_counters_init_attr;
    /// Attachment of a counter.
    ibv_counter_attach_attr;
    /// A steering rule.
    ibv_flow;
    /// A steering rule's description.
    ibv_flow_attr;
    /// An action of a steering rule.
    ibv_flow_action;
    /// An IPsec action of a steering rule.
    ibv_flow_action_esp_attr;
    /// Device memory.
    ibv_dm;
    /// Attributes of device memory.
    ibv_alloc_dm_attr;
    /// A tag matching operation.
    ibv_ops_wr;
    /// Attributes of a receive work queue indirection table.
    ibv_rwq_ind_table_init_attr;
    /// Attributes of a work queue.
    ibv_wq_attr;
    /// How to create a work queue.
    ibv_wq_init_attr;
    /// Private state of the C library; a provider may store anything here.
    verbs_ex_private;
}

c_structs! { verbs_ops_structs;
    /// The first table. Slots named `_compat_` are for programs of 2007.
    #[derive(Debug, Clone, Copy)]
    struct ibv_context_ops {
        _compat_query_device: cfn!(*mut ibv_context, *mut ibv_device_attr => c_int),
        _compat_query_port: cfn!(*mut ibv_context, u8, *mut _compat_ibv_port_attr => c_int),
        _compat_alloc_pd: cfn!(=> *mut c_void),
        _compat_dealloc_pd: cfn!(=> *mut c_void),
        _compat_reg_mr: cfn!(=> *mut c_void),
        _compat_rereg_mr: cfn!(=> *mut c_void),
        _compat_dereg_mr: cfn!(=> *mut c_void),
        alloc_mw: cfn!(*mut ibv_pd, ibv_mw_type => *mut ibv_mw),
        bind_mw: cfn!(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind => c_int),
        dealloc_mw: cfn!(*mut ibv_mw => c_int),
        _compat_create_cq: cfn!(=> *mut c_void),
        poll_cq: cfn!(*mut ibv_cq, c_int, *mut ibv_wc => c_int),
        req_notify_cq: cfn!(*mut ibv_cq, c_int => c_int),
        _compat_cq_event: cfn!(=> *mut c_void),
        _compat_resize_cq: cfn!(=> *mut c_void),
        _compat_destroy_cq: cfn!(=> *mut c_void),
        _compat_create_srq: cfn!(=> *mut c_void),
        _compat_modify_srq: cfn!(=> *mut c_void),
        _compat_query_srq: cfn!(=> *mut c_void),
        _compat_destroy_srq: cfn!(=> *mut c_void),
        post_srq_recv: cfn!(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr => c_int),
        _compat_create_qp: cfn!(=> *mut c_void),
        _compat_query_qp: cfn!(=> *mut c_void),
        _compat_modify_qp: cfn!(=> *mut c_void),
        _compat_destroy_qp: cfn!(=> *mut c_void),
        post_send: cfn!(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr => c_int),
        post_recv: cfn!(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr => c_int),
        _compat_create_ah: cfn!(=> *mut c_void),
        _compat_destroy_ah: cfn!(=> *mut c_void),
        _compat_attach_mcast: cfn!(=> *mut c_void),
        _compat_detach_mcast: cfn!(=> *mut c_void),
        _compat_async_event: cfn!(=> *mut c_void),
    }

    /// An open device. Allocate it as the last member of [`verbs_context`] and
    /// set `abi_compat` to [`VERBS_ABI_IS_EXTENDED`].
    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: libc::pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    /// The second table, before an extended [`ibv_context`]. It grew downwards in memory: a slot
    /// exists if `sz` reaches down to it.
    struct verbs_context {
        query_port: cfn!(*mut ibv_context, u8, *mut ibv_port_attr, usize => c_int),
        advise_mr: cfn!(*mut ibv_pd, ibv_advise_mr_advice, u32, *mut ibv_sge, u32 => c_int),
        alloc_null_mr: cfn!(*mut ibv_pd => *mut ibv_mr),
        read_counters: cfn!(*mut ibv_counters, *mut u64, u32, u32 => c_int),
        attach_counters_point_flow:
            cfn!(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow => c_int),
        create_counters:
            cfn!(*mut ibv_context, *mut ibv_counters_init_attr => *mut ibv_counters),
        destroy_counters: cfn!(*mut ibv_counters => c_int),
        reg_dm_mr: cfn!(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint => *mut ibv_mr),
        alloc_dm: cfn!(*mut ibv_context, *mut ibv_alloc_dm_attr => *mut ibv_dm),
        free_dm: cfn!(*mut ibv_dm => c_int),
        modify_flow_action_esp:
            cfn!(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr => c_int),
        destroy_flow_action: cfn!(*mut ibv_flow_action => c_int),
        create_flow_action_esp:
            cfn!(*mut ibv_context, *mut ibv_flow_action_esp_attr => *mut ibv_flow_action),
        modify_qp_rate_limit: cfn!(*mut ibv_qp, *mut ibv_qp_rate_limit_attr => c_int),
        alloc_parent_domain:
            cfn!(*mut ibv_context, *mut ibv_parent_domain_init_attr => *mut ibv_pd),
        dealloc_td: cfn!(*mut ibv_td => c_int),
        alloc_td: cfn!(*mut ibv_context, *mut ibv_td_init_attr => *mut ibv_td),
        modify_cq: cfn!(*mut ibv_cq, *mut ibv_modify_cq_attr => c_int),
        post_srq_ops: cfn!(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr => c_int),
        destroy_rwq_ind_table: cfn!(*mut ibv_rwq_ind_table => c_int),
        create_rwq_ind_table:
            cfn!(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr => *mut ibv_rwq_ind_table),
        destroy_wq: cfn!(*mut ibv_wq => c_int),
        modify_wq: cfn!(*mut ibv_wq, *mut ibv_wq_attr => c_int),
        create_wq: cfn!(*mut ibv_context, *mut ibv_wq_init_attr => *mut ibv_wq),
        query_rt_values: cfn!(*mut ibv_context, *mut ibv_values_ex => c_int),
        create_cq_ex: cfn!(*mut ibv_context, *mut ibv_cq_init_attr_ex => *mut ibv_cq_ex),
        r#priv: *mut verbs_ex_private,
        query_device_ex: cfn!(
            *mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex, usize
            => c_int
        ),
        ibv_destroy_flow: cfn!(*mut ibv_flow => c_int),
        ABI_placeholder2: cfn!(),
        ibv_create_flow: cfn!(*mut ibv_qp, *mut ibv_flow_attr => *mut ibv_flow),
        ABI_placeholder1: cfn!(),
        open_qp: cfn!(*mut ibv_context, *mut ibv_qp_open_attr => *mut ibv_qp),
        create_qp_ex: cfn!(*mut ibv_context, *mut ibv_qp_init_attr_ex => *mut ibv_qp),
        get_srq_num: cfn!(*mut ibv_srq, *mut u32 => c_int),
        create_srq_ex: cfn!(*mut ibv_context, *mut ibv_srq_init_attr_ex => *mut ibv_srq),
        open_xrcd: cfn!(*mut ibv_context, *mut ibv_xrcd_init_attr => *mut ibv_xrcd),
        /// Called unchecked by holders of an XRC domain.
        close_xrcd: cfn!(*mut ibv_xrcd => c_int),
        _ABI_placeholder3: u64,
        /// Size of this structure, which determines the valid slots.
        sz: usize,
        context: ibv_context,
    }

    /// A queue pair with the work request builder interface. A program has one
    /// only if `ibv_qp_to_qp_ex` returned it.
    struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        /// The program sets it before each operation.
        wr_id: u64,
        /// Likewise: bits `IBV_SEND_*`.
        wr_flags: c_uint,
        wr_atomic_cmp_swp: cfn!(*mut ibv_qp_ex, u32, u64, u64, u64),
        wr_atomic_fetch_add: cfn!(*mut ibv_qp_ex, u32, u64, u64),
        wr_bind_mw: cfn!(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
        wr_local_inv: cfn!(*mut ibv_qp_ex, u32),
        wr_rdma_read: cfn!(*mut ibv_qp_ex, u32, u64),
        wr_rdma_write: cfn!(*mut ibv_qp_ex, u32, u64),
        wr_rdma_write_imm: cfn!(*mut ibv_qp_ex, u32, u64, __be32),
        wr_send: cfn!(*mut ibv_qp_ex),
        wr_send_imm: cfn!(*mut ibv_qp_ex, __be32),
        wr_send_inv: cfn!(*mut ibv_qp_ex, u32),
        wr_send_tso: cfn!(*mut ibv_qp_ex, *mut c_void, u16, u16),
        wr_set_ud_addr: cfn!(*mut ibv_qp_ex, *mut ibv_ah, u32, u32),
        wr_set_xrc_srqn: cfn!(*mut ibv_qp_ex, u32),
        wr_set_inline_data: cfn!(*mut ibv_qp_ex, *mut c_void, usize),
        wr_set_inline_data_list: cfn!(*mut ibv_qp_ex, usize, *const ibv_data_buf),
        wr_set_sge: cfn!(*mut ibv_qp_ex, u32, u64, u32),
        wr_set_sge_list: cfn!(*mut ibv_qp_ex, usize, *const ibv_sge),
        wr_start: cfn!(*mut ibv_qp_ex),
        wr_complete: cfn!(*mut ibv_qp_ex => c_int),
        wr_abort: cfn!(*mut ibv_qp_ex),
        wr_atomic_write: cfn!(*mut ibv_qp_ex, u32, u64, *const c_void),
    }

    /// A completion queue with the iterator interface. Begins as [`ibv_cq`].
    struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        /// Of the iterator's current completion; the program reads it.
        status: ibv_wc_status,
        /// Likewise.
        wr_id: u64,
        start_poll: cfn!(*mut ibv_cq_ex, *mut ibv_poll_cq_attr => c_int),
        next_poll: cfn!(*mut ibv_cq_ex => c_int),
        end_poll: cfn!(*mut ibv_cq_ex),
        read_opcode: cfn!(*mut ibv_cq_ex => ibv_wc_opcode),
        read_vendor_err: cfn!(*mut ibv_cq_ex => u32),
        read_byte_len: cfn!(*mut ibv_cq_ex => u32),
        read_imm_data: cfn!(*mut ibv_cq_ex => __be32),
        read_qp_num: cfn!(*mut ibv_cq_ex => u32),
        read_src_qp: cfn!(*mut ibv_cq_ex => u32),
        read_wc_flags: cfn!(*mut ibv_cq_ex => c_uint),
        read_slid: cfn!(*mut ibv_cq_ex => u32),
        read_sl: cfn!(*mut ibv_cq_ex => u8),
        read_dlid_path_bits: cfn!(*mut ibv_cq_ex => u8),
        read_completion_ts: cfn!(*mut ibv_cq_ex => u64),
        read_cvlan: cfn!(*mut ibv_cq_ex => u16),
        read_flow_tag: cfn!(*mut ibv_cq_ex => u32),
        read_tm_info: cfn!(*mut ibv_cq_ex, *mut ibv_wc_tm_info),
        read_completion_wallclock_ns: cfn!(*mut ibv_cq_ex => u64),
    }
}

/// Value of `ibv_context::abi_compat` that marks a surrounding [`verbs_context`]: `(void
/// *)UINTPTR_MAX`.
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// The header's `verbs_get_ctx`: the table around a context, or null.
///
/// # Safety
///
/// `context` points to a context that may be read, and, if its `abi_compat` is
/// [`VERBS_ABI_IS_EXTENDED`], the pointer may be used for the whole
/// [`verbs_context`] around it.
#[must_use]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller guarantees the context.
    let abi_compat = unsafe { (*context).abi_compat };
    if abi_compat != VERBS_ABI_IS_EXTENDED {
        return core::ptr::null_mut();
    }
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}
