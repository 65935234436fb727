//! The effect of boxes beside the hosts: accelerators alone, or with a transport between them.

use crate::nic::NicProfile;
use crate::path::Path;
use crate::predict::{Limit, Prediction};
use crate::transport;
use crate::workload::Workload;
use crate::{Invalid, wire};
use serde::Serialize;

/// A transparent box near the requester that stores and acknowledges requests, with another at the
/// far end. The requester sees the box's round trip; the box repairs loss on the WAN by go-back-N,
/// or by the transport.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accelerator {
    /// Round trip between requester and box, including the box's processing time, in ns.
    pub lan_rtt_ns: f64,
    /// Processing time per packet, in ns.
    pub packet_ns: f64,
}

/// Minimum retransmission timeout of a box (`rto_min`).
const TIMEOUT_MIN_NS: f64 = 10e6;

impl Default for Accelerator {
    /// 20.6 µs, fitted to the gain of 35 at 512 B over 100 km (NTT Technical Review 2024, 5.3); 10
    /// million packets per second, this project's goal for a core.
    fn default() -> Self {
        Accelerator { lan_rtt_ns: 20_600.0, packet_ns: 100.0 }
    }
}

impl Accelerator {
    /// Prediction for the same workload with accelerators alone. READs and atomics are unchanged,
    /// because the responder answers them across the path.
    ///
    /// With loss, the goodput is that of delivery: a requester completes ahead of it by what the
    /// box may store.
    ///
    /// # Errors
    ///
    /// As [`Prediction::new`].
    pub fn predict(
        &self,
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
    ) -> Result<Prediction, Invalid> {
        if workload.op.is_answered() {
            return Prediction::new(path, nic, workload);
        }
        let near = self.without_loss(path, nic, workload)?;
        if path.loss == 0.0 {
            return Ok(near);
        }
        let loss_factor = Self::go_back_n(path, &near, f64::from(workload.qps));
        let most = loss_factor * near.ceiling_bps;
        Ok(Prediction { loss_factor, ..near.bounded(Limit::Loss, most) })
    }

    /// Prediction for the same workload with a transport between the accelerators, on a path that
    /// also carries the transport's headers, retransmissions and parity. READs and atomics see the
    /// path's round trip, but not its loss.
    ///
    /// # Errors
    ///
    /// As [`Prediction::new`].
    pub fn predict_transport(
        &self,
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
    ) -> Result<Prediction, Invalid> {
        let near = self.without_loss(path, nic, workload)?;
        let most = transport::goodput_bps(path, workload.size, &near.message);
        Ok(near.bounded(Limit::Transport, most))
    }

    /// Prediction for boxes from which every packet arrives.
    fn without_loss(
        &self,
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
    ) -> Result<Prediction, Invalid> {
        path.check()?;
        let lossless = Path { loss: 0.0, ..*path };
        let plain = Prediction::new(&lossless, nic, workload)?;
        if workload.op.is_answered() {
            return Ok(plain);
        }
        let near = Path { one_way_ns: self.lan_rtt_ns / 2.0, ..lossless };
        let is_slower = self.packet_ns > nic.packet_ns as f64;
        let beside =
            NicProfile { packet_ns: nic.packet_ns.max(self.packet_ns as u64), ..nic.clone() };
        let mut with = Prediction::new(&near, &beside, workload)?;
        let renamed = |limit| {
            if is_slower && limit == Limit::PacketRate { Limit::Accelerator } else { limit }
        };
        with.limit = renamed(with.limit);
        with.bounds.iter_mut().for_each(|bound| bound.limit = renamed(bound.limit));
        // Delivery still takes the path's delay.
        with.latency_ns = plain.latency_ns;
        Ok(with)
    }

    /// Share of first transmissions in what the near box sends at full rate: go-back-N over the
    /// path's round trip. A gap is found by timeout if its NAK or its retransmission is lost too.
    fn go_back_n(path: &Path, near: &Prediction, qps: f64) -> f64 {
        let packets_per_ns = near.message.packets / near.message.wire_ns / qps;
        let timeout_ns = TIMEOUT_MIN_NS.max(1.25 * path.rtt_ns());
        let gap_ns = path.rtt_ns() + 2.0 * path.loss * timeout_ns;
        1.0 / (1.0 + path.loss * packets_per_ns * gap_ns)
    }

    /// Store of the near box in bytes: the bandwidth-delay product, twice that on a lossy path.
    pub fn near_bytes(&self, path: &Path, nic: &NicProfile) -> f64 {
        let once = path.rtt_ns() * wire::rate_bps(path, nic) / 8e9;
        if path.loss > 0.0 { 2.0 * once } else { once }
    }

    /// Store of the far box in bytes, to restore the order of packets: two round trips' worth on a
    /// lossy path.
    pub fn far_bytes(&self, path: &Path, nic: &NicProfile) -> f64 {
        if path.loss > 0.0 { self.near_bytes(path, nic) } else { 0.0 }
    }
}
