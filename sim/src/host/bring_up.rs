//! Connecting a host's QPs.

use super::connections::Offer;
use super::memory::Spans;
use super::{Nic, Peer, READS_SERVED, RNR_RETRIES, Terms};
use crate::profile::NicProfile;
use longhaul_rnic::{Access, AddressVector, BringUp, Mtu, QpAttr, VerbsError};
use longhaul_units::{Instant, Psn};

impl Nic {
    pub(super) fn end(&self, slot: usize) -> Peer {
        let Offer { address, rkey, .. } = self.offer(slot, 0);
        Peer { ip: self.rnic.config().addresses.first(), qpn: self.qps[slot].qpn, address, rkey }
    }

    pub(super) fn offer(&self, slot: usize, index: u32) -> Offer {
        Offer { index, rkey: self.keys.rkey, address: Spans::address(slot) }
    }

    /// Returns the parameters of a connection with this path MTU and these PSNs of its own and the
    /// peer.
    pub(super) fn terms(&self, mtu: Mtu, [first_psn, peer_psn]: [Psn; 2]) -> Terms {
        let NicProfile { timeout_code: timeout, retry_count, outstanding_reads: reads, .. } =
            self.profile;
        Terms { mtu, first_psn, peer_psn, timeout, retry_count, reads }
    }

    /// Moves a QP to INIT, so that it accepts receives.
    pub(super) fn initialize(&mut self, slot: usize) -> Result<(), VerbsError> {
        let attr = QpAttr::initialize(Access::ALL);
        self.rnic.modify_qp(Instant::ZERO, self.qps[slot].qpn, &attr)
    }

    /// Moves an initialized QP to RTR and RTS.
    pub(super) fn make_ready(
        &mut self,
        now: Instant,
        slot: usize,
        peer: &Peer,
        terms: &Terms,
    ) -> Result<(), VerbsError> {
        let to = &mut self.qps[slot];
        (to.peer_address, to.peer_rkey) = (peer.address, peer.rkey);
        let (kind, traffic_class) = (to.kind, to.dscp << 2);
        let bring_up = BringUp {
            address: AddressVector { traffic_class, ..AddressVector::to(peer.ip) },
            path_mtu: terms.mtu,
            sq_psn: terms.first_psn,
            rq_psn: terms.peer_psn,
            max_rd_atomic: terms.reads,
            max_dest_rd_atomic: READS_SERVED,
            min_rnr_timer: 12,
            timeout: terms.timeout,
            retry_cnt: terms.retry_count,
            rnr_retry: RNR_RETRIES,
            ..BringUp::to(peer.ip, peer.qpn)
        };
        let qpn = to.qpn;
        let steps = bring_up.make_ready(kind);
        steps.iter().try_for_each(|attr| self.rnic.modify_qp(now, qpn, attr))
    }
}
