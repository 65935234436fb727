//! The transitions from reset to ready to send, with their attributes.

use crate::{Access, AddressVector, QpAttr, QpKind, QpState};
use longhaul_units::{Psn, Qpn};
use longhaul_work::Mtu;
use std::net::IpAddr;

/// Attributes of a QP between reset and ready to send. Each transport uses its own subset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BringUp {
    /// Path to the peer.
    pub address: AddressVector,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// Operations permitted to the peer.
    pub access: Access,
    /// QKey of a datagram QP.
    pub qkey: u32,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// First PSN to send.
    pub sq_psn: Psn,
    /// First PSN to expect.
    pub rq_psn: Psn,
    /// READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries without progress.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
}

impl BringUp {
    /// A connection to QP `dest_qpn` at `ip`: all access, the longest path MTU, PSNs from 0, 16
    /// READs, a timeout of 67 ms, and the maximum number of retries.
    pub fn to(ip: IpAddr, dest_qpn: Qpn) -> Self {
        BringUp {
            address: AddressVector::to(ip),
            dest_qpn,
            access: Access::ALL,
            qkey: 0,
            path_mtu: Mtu::B4096,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
        }
    }

    /// To initialized, ready to receive, ready to send.
    pub fn transitions(&self, kind: QpKind) -> [QpAttr; 3] {
        let [receiving, sending] = self.make_ready(kind);
        let initialize = match kind {
            QpKind::Rc | QpKind::Uc => QpAttr::initialize(self.access),
            QpKind::Ud => QpAttr::initialize_datagrams(self.qkey),
        };
        [initialize, receiving, sending]
    }

    /// From initialized to ready to receive, then to ready to send.
    pub fn make_ready(&self, kind: QpKind) -> [QpAttr; 2] {
        let (is_connected, is_reliable) = (kind != QpKind::Ud, kind == QpKind::Rc);
        [
            QpAttr {
                path_mtu: is_connected.then_some(self.path_mtu),
                address: is_connected.then_some(self.address),
                dest_qpn: is_connected.then_some(self.dest_qpn),
                rq_psn: is_connected.then_some(self.rq_psn),
                max_dest_rd_atomic: is_reliable.then_some(self.max_dest_rd_atomic),
                min_rnr_timer: is_reliable.then_some(self.min_rnr_timer),
                ..QpAttr::to(QpState::ReadyToReceive)
            },
            QpAttr {
                sq_psn: Some(self.sq_psn),
                timeout: is_reliable.then_some(self.timeout),
                retry_cnt: is_reliable.then_some(self.retry_cnt),
                rnr_retry: is_reliable.then_some(self.rnr_retry),
                max_rd_atomic: is_reliable.then_some(self.max_rd_atomic),
                ..QpAttr::to(QpState::ReadyToSend)
            },
        ]
    }
}
