//! Path records: `infiniband/sa.h`.
//!
//! On Ethernet the connection manager fills one per resolved route; programs
//! read its GIDs, and a few set one with `RDMA_OPTION_IB_PATH`.

#![allow(
    missing_docs,
    reason = "the fields carry their C names; the path record is defined by the InfiniBand \
              specification, volume 1, 15.2.5.16"
)]

use core::ffi::c_int;

use crate::{__be16, __be32, __be64, ibv_gid};

c_structs! { sa_structs;
    /// A path record, one C member per field of the record.
    #[derive(Clone, Copy)]
    struct ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: __be16,
        slid: __be16,
        raw_traffic: c_int,
        flow_label: __be32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: __be16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    /// A path record as it is on the wire.
    #[derive(Clone, Copy)]
    struct ibv_path_record {
        service_id: __be64,
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: __be16,
        slid: __be16,
        flowlabel_hoplimit: __be32,
        tclass: u8,
        reversible_numpath: u8,
        pkey: __be16,
        qosclass_sl: __be16,
        mtu: u8,
        rate: u8,
        packetlifetime: u8,
        preference: u8,
        reserved: [u8; 6],
    }

    /// A wire path record with `IBV_PATH_FLAG_*`: an element of
    /// `RDMA_OPTION_IB_PATH`, and of `rdma_addrinfo::ai_route`.
    #[derive(Clone, Copy)]
    struct ibv_path_data {
        flags: u32,
        reserved: u32,
        path: ibv_path_record,
    }
}

c_consts! { sa_consts;
    IBV_PATH_RECORD_REVERSIBLE: u8 = 0x80;
    IBV_PATH_FLAG_GMP: u32 = 1 << 0;
    IBV_PATH_FLAG_PRIMARY: u32 = 1 << 1;
    IBV_PATH_FLAG_ALTERNATE: u32 = 1 << 2;
    IBV_PATH_FLAG_OUTBOUND: u32 = 1 << 3;
    IBV_PATH_FLAG_INBOUND: u32 = 1 << 4;
    IBV_PATH_FLAG_INBOUND_REVERSE: u32 = 1 << 5;
    IBV_PATH_FLAG_BIDIRECTIONAL: u32 = IBV_PATH_FLAG_OUTBOUND | IBV_PATH_FLAG_INBOUND_REVERSE;
}
