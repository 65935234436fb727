//! Devices, ports, GIDs and asynchronous events: `infiniband/verbs.h`.

#![allow(
    missing_docs,
    reason = "the members carry their C names, which the verbs manual pages document"
)]

use core::ffi::{c_char, c_int, c_uint};

use crate::{
    __be64, IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX, ibv_atomic_cap, ibv_context, ibv_cq,
    ibv_event_type, ibv_mtu, ibv_node_type, ibv_port_state, ibv_qp, ibv_srq, ibv_transport_type,
    ibv_wq,
};

c_structs! { device_structs;
    /// The two halves of a GID.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct ibv_gid_global as "__typeof__(((union ibv_gid *)0)->global)" {
        subnet_prefix: __be64,
        interface_id: __be64,
    }

    /// A GID table entry, as `ibv_query_gid_ex` reports it.
    #[derive(Clone, Copy)]
    struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        /// An `ibv_gid_type`.
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// Unused function slots at the head of [`ibv_device`].
    #[derive(Debug, Clone, Copy)]
    struct _ibv_device_ops {
        _dummy1: cfn!(*mut ibv_device, c_int => *mut ibv_context),
        _dummy2: cfn!(*mut ibv_context),
    }

    /// A device. Programs read `node_type` and `transport_type`, and the names.
    struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        /// Name of the kernel device, as `mlx5_0`.
        name: [c_char; IBV_SYSFS_NAME_MAX],
        /// Name of the verbs character device, as `uverbs0`.
        dev_name: [c_char; IBV_SYSFS_NAME_MAX],
        /// Its directory in sysfs.
        dev_path: [c_char; IBV_SYSFS_PATH_MAX],
        /// The device's directory in sysfs; `ibv_devinfo` reads files there.
        ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
    }

    /// Limits of a device.
    #[derive(Debug, Clone, Copy)]
    struct ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: __be64,
        sys_image_guid: __be64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        /// Bits `IBV_DEVICE_*`.
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: ibv_atomic_cap,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// Input of `ibv_query_device_ex`, for extensions that do not exist yet.
    #[derive(Debug, Clone, Copy)]
    struct ibv_query_device_ex_input {
        comp_mask: u32,
    }

    #[derive(Debug, Clone, Copy)]
    struct ibv_odp_caps_per_transport_caps
        as "__typeof__(((struct ibv_odp_caps *)0)->per_transport_caps)"
    {
        rc_odp_caps: u32,
        uc_odp_caps: u32,
        ud_odp_caps: u32,
    }

    /// On-demand paging.
    #[derive(Debug, Clone, Copy)]
    struct ibv_odp_caps {
        general_caps: u64,
        per_transport_caps: ibv_odp_caps_per_transport_caps,
    }

    /// Segmentation offload.
    #[derive(Debug, Clone, Copy)]
    struct ibv_tso_caps {
        max_tso: u32,
        supported_qpts: u32,
    }

    /// Receive side scaling.
    #[derive(Debug, Clone, Copy)]
    struct ibv_rss_caps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }

    /// Pacing; rates in kbit/s.
    #[derive(Debug, Clone, Copy)]
    struct ibv_packet_pacing_caps {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }

    /// Tag matching.
    #[derive(Debug, Clone, Copy)]
    struct ibv_tm_caps {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }

    /// Completion moderation; period in microseconds.
    #[derive(Debug, Clone, Copy)]
    struct ibv_cq_moderation_caps {
        max_cq_count: u16,
        max_cq_period: u16,
    }

    /// PCIe atomics.
    #[derive(Debug, Clone, Copy)]
    struct ibv_pci_atomic_caps {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }

    /// Limits of a device, extended. A caller may pass a shorter structure: never fill more than
    /// its given size.
    #[derive(Debug, Clone, Copy)]
    struct ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    /// Attributes of a port.
    #[derive(Debug, Clone, Copy)]
    struct ibv_port_attr {
        state: ibv_port_state,
        max_mtu: ibv_mtu,
        active_mtu: ibv_mtu,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }

    /// An asynchronous event; which member of `element` holds depends on the type.
    #[derive(Clone, Copy)]
    struct ibv_async_event {
        element: ibv_async_event_element,
        event_type: ibv_event_type,
    }
}

c_unions! { device_unions;
    /// A GID: an IPv6 address, or an IPv4 one mapped into IPv6.
    union ibv_gid {
        raw: [u8; 16],
        global: ibv_gid_global,
    }

    /// The member `element` of [`ibv_async_event`].
    union ibv_async_event_element as "__typeof__(((struct ibv_async_event *)0)->element)" {
        cq: *mut ibv_cq,
        qp: *mut ibv_qp,
        srq: *mut ibv_srq,
        wq: *mut ibv_wq,
        port_num: c_int,
    }
}

/// Result of the symbol `ibv_query_port`: [`ibv_port_attr`] without `port_cap_flags2`, 48 bytes.
///
/// The type is opaque in the installed header. Its definition is private to
/// `libibverbs/verbs.c` (rdma-core 44); the symbol must not write beyond it,
/// because old programs allocate no more.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct _compat_ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
}

c_aggregate!(
    _compat_ibv_port_attr,
    "struct _compat_ibv_port_attr",
    ibv_port_state,
    ibv_mtu,
    c_int,
    u32,
    u16,
    u8
);

/// Stored by the private symbol `ibv_query_gid_type` for InfiniBand and RoCE v1 GIDs, and for empty
/// entries.
///
/// From `libibverbs/driver.h` (rdma-core 44), which is not installed, so this
/// and [`IBV_GID_TYPE_SYSFS_ROCE_V2`] are not compared with C.
pub const IBV_GID_TYPE_SYSFS_IB_ROCE_V1: u32 = 0;
/// Stored by the private symbol `ibv_query_gid_type` for RoCE v2 GIDs.
pub const IBV_GID_TYPE_SYSFS_ROCE_V2: u32 = 1;

impl ibv_gid {
    /// The GID with these bytes, in wire order.
    #[must_use]
    pub const fn from_bytes(raw: [u8; 16]) -> Self {
        Self { raw }
    }

    /// The bytes, in wire order.
    #[must_use]
    pub const fn bytes(&self) -> [u8; 16] {
        // SAFETY: both members are 16 bytes without padding, and any 16 bytes
        // are a valid array.
        unsafe { self.raw }
    }
}
