//! The connection manager: `rdma/rdma_cma.h`.
//!
//! `rdma/rdma_verbs.h` only adds inline helpers, which read `qp`, `srq`, `pd` and the CQ members of
//! [`rdma_cm_id`] directly: they must be kept current.

#![allow(
    missing_docs,
    reason = "the members carry their C names, which the librdmacm manual pages document"
)]

use core::ffi::{c_char, c_int, c_void};

use crate::{
    __be16, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp,
    ibv_qp_type, ibv_sa_path_rec, ibv_srq,
};

c_enums! { rdmacm_enums;
    /// Events of an event channel.
    enum rdma_cm_event_type: u32 {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }

    /// Port spaces of an identifier.
    enum rdma_port_space: u32 {
        RDMA_PS_IPOIB = 0x0002,
        RDMA_PS_TCP = 0x0106,
        RDMA_PS_UDP = 0x0111,
        RDMA_PS_IB = 0x013f,
    }

    /// How a multicast group is joined.
    enum rdma_cm_mc_join_flags: u32 {
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
        RDMA_MC_JOIN_FLAG_RESERVED = 2,
    }
}

c_flags! { rdmacm_flags;
    /// Valid fields of [`rdma_cm_join_mc_attr_ex`].
    enum rdma_cm_join_mc_attr_mask: u32 {
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
        RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
    }
}

c_consts! { rdmacm_consts;
    RDMA_IB_IP_PS_MASK: u64 = 0xffff_ffff_ffff_0000;
    RDMA_IB_IP_PORT_MASK: u64 = 0x0000_0000_0000_ffff;
    RDMA_IB_IP_PS_TCP: u64 = 0x0000_0000_0106_0000;
    RDMA_IB_IP_PS_UDP: u64 = 0x0000_0000_0111_0000;
    RDMA_IB_PS_IB: u64 = 0x0000_0000_013f_0000;
    /// Q_Key of UD queue pairs created through the connection manager.
    RDMA_UDP_QKEY: u32 = 0x0123_4567;
    /// In `rdma_conn_param`: "as much as the device allows".
    RDMA_MAX_RESP_RES: u8 = 0xff;
    RDMA_MAX_INIT_DEPTH: u8 = 0xff;
    RAI_PASSIVE: c_int = 0x1;
    RAI_NUMERICHOST: c_int = 0x2;
    RAI_NOROUTE: c_int = 0x4;
    RAI_FAMILY: c_int = 0x8;
    /// Levels of `rdma_set_option`.
    RDMA_OPTION_ID: c_int = 0;
    RDMA_OPTION_IB: c_int = 1;
    /// One byte, the IP type of service.
    RDMA_OPTION_ID_TOS: c_int = 0;
    /// A C `int`.
    RDMA_OPTION_ID_REUSEADDR: c_int = 1;
    /// A C `int`.
    RDMA_OPTION_ID_AFONLY: c_int = 2;
    /// One byte, an exponent as in `ibv_qp_attr::timeout`.
    RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
    /// An array of [`crate::ibv_path_data`].
    RDMA_OPTION_IB_PATH: c_int = 1;
}

c_structs! { rdmacm_structs;
    /// InfiniBand addresses of a route.
    #[derive(Clone, Copy)]
    struct rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        pkey: __be16,
    }

    /// Source and destination of a route.
    #[derive(Clone, Copy)]
    struct rdma_addr {
        src: rdma_addr_src => anon,
        dst: rdma_addr_dst => anon,
        addr: rdma_addr_addr,
    }

    /// A resolved route.
    #[derive(Clone, Copy)]
    struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }

    /// An event channel. Programs poll `fd`.
    #[derive(Debug)]
    struct rdma_event_channel {
        fd: c_int,
    }

    /// An identifier: the socket of the connection manager.
    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type,
    }

    /// Parameters of a connection.
    #[derive(Debug, Clone, Copy)]
    struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    /// Parameters of a datagram service in an event.
    #[derive(Clone, Copy)]
    struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    /// An event, owned by the caller until `rdma_ack_cm_event`.
    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        param: rdma_cm_event_param,
    }

    /// An element of the list that `rdma_getaddrinfo` returns.
    struct rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: libc::socklen_t,
        ai_dst_len: libc::socklen_t,
        ai_src_addr: *mut libc::sockaddr,
        ai_dst_addr: *mut libc::sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    /// Argument of `rdma_join_multicast_ex`.
    #[derive(Debug, Clone, Copy)]
    struct rdma_cm_join_mc_attr_ex {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut libc::sockaddr,
    }
}

c_unions! { rdmacm_unions;
    /// The member `addr` of [`rdma_addr`].
    union rdma_addr_addr as "__typeof__(((struct rdma_addr *)0)->addr)" {
        ibaddr: rdma_ib_addr,
    }

    /// The member `param` of [`rdma_cm_event`]: `conn` for connected port spaces.
    union rdma_cm_event_param as "__typeof__(((struct rdma_cm_event *)0)->param)" {
        conn: rdma_conn_param,
        ud: rdma_ud_param,
    }
}

c_anonymous_unions! { rdmacm_anonymous_unions;
    /// The source address.
    union rdma_addr_src in rdma_addr.src {
        src_addr: libc::sockaddr,
        src_sin: libc::sockaddr_in,
        src_sin6: libc::sockaddr_in6,
        src_storage: libc::sockaddr_storage,
    }

    /// The destination address.
    union rdma_addr_dst in rdma_addr.dst {
        dst_addr: libc::sockaddr,
        dst_sin: libc::sockaddr_in,
        dst_sin6: libc::sockaddr_in6,
        dst_storage: libc::sockaddr_storage,
    }
}
