//! What a WAN accelerator near the requester brings.

use crate::nic::NicProfile;
use crate::path::Path;
use crate::predict::{Limit, Prediction};
use crate::workload::Workload;
use crate::{Invalid, wire};
use serde::Serialize;

/// A transparent box near the requester that stores requests and acknowledges them itself, with
/// another at the far end: the requester sees its round trip, and loss on the WAN is theirs to
/// repair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accelerator {
    /// Round trip between requester and box, with what the box takes.
    pub lan_rtt_ns: f64,
    /// What it takes for a packet.
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
    /// What the same workload gives with it. READs and atomics are answered by the responder across
    /// the path, so that nothing changes for them.
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
        // What arrives still crosses the path.
        with.latency_ns = plain.latency_ns;
        Ok(with)
    }

    /// Bytes that the near box must hold: all that is on its way, twice where it may have to be
    /// sent again.
    pub fn near_bytes(&self, path: &Path, nic: &NicProfile) -> f64 {
        let once = path.rtt_ns() * wire::rate_bps(path, nic) / 8e9;
        if path.loss > 0.0 { 2.0 * once } else { once }
    }

    /// Bytes that the far box must hold to restore the order of packets: two round trips' worth
    /// where there is loss.
    pub fn far_bytes(&self, path: &Path, nic: &NicProfile) -> f64 {
        if path.loss > 0.0 { self.near_bytes(path, nic) } else { 0.0 }
    }
}
