//! The effect of a WAN accelerator near the requester.

use crate::nic::NicProfile;
use crate::path::Path;
use crate::predict::{Limit, Prediction};
use crate::workload::Workload;
use crate::{Invalid, wire};
use serde::Serialize;

/// A transparent box near the requester that stores and acknowledges requests, with another at the
/// far end. The requester sees the box's round trip, and the boxes repair loss on the WAN.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accelerator {
    /// Round trip between requester and box, including the box's processing time, in ns.
    pub lan_rtt_ns: f64,
    /// Processing time per packet, in ns.
    pub packet_ns: f64,
}

impl Default for Accelerator {
    /// 20.6 µs, fitted to the gain of 35 at 512 B over 100 km (NTT Technical Review 2024, 5.3); 10
    /// million packets per second, this project's goal for a core.
    fn default() -> Self {
        Accelerator { lan_rtt_ns: 20_600.0, packet_ns: 100.0 }
    }
}

impl Accelerator {
    /// Prediction for the same workload with the accelerator. READs and atomics are unchanged,
    /// because the responder answers them across the path.
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
        let plain = Prediction::new(path, nic, workload)?;
        if workload.op.is_answered() {
            return Ok(plain);
        }
        let near = Path { one_way_ns: self.lan_rtt_ns / 2.0, loss: 0.0, ..*path };
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
