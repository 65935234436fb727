//! The prediction for NVMe over Fabrics.
//!
//! A read takes a round trip: a command, and a WRITE of the data with the response behind it. So
//! does a write whose data are in its command's capsule. Any other write takes two, because the
//! target fetches the data by READs, of which a NIC has few outstanding.

use crate::Invalid;
use crate::nic::NicProfile;
use crate::path::Path;
use crate::predict::{Limit, Prediction};
use crate::wire::Message;
use crate::workload::{Op, Workload};

/// Bytes of a command and of a response (NVMe Base 2.0, 4.1.1 and 4.2.1).
const COMMAND: u64 = 64;
const RESPONSE: u64 = 16;

/// A storage target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Storage {
    /// Longest data of a write that its command's capsule takes, in bytes.
    pub in_capsule: u64,
    /// Processors that serve the I/O queues, at least 1.
    pub cores: u32,
    /// A processor's time for a command, besides posting and polling.
    pub command_ns: f64,
    /// Rate of all drives together; infinite for memory.
    pub drive_bps: f64,
    /// Time until a drive begins to transfer.
    pub drive_latency_ns: f64,
}

impl Storage {
    /// Predicts commands over `path` between two NICs `nic`: `workload` has [`Op::Read`] or
    /// [`Op::Write`], and as `tx_depth` the outstanding commands of each queue, which has a thread
    /// of its own at the host. The latency is that of a command among all that are outstanding.
    ///
    /// # Errors
    /// A value of the path or workload is out of range.
    pub fn predict(
        &self,
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
    ) -> Result<Prediction, Invalid> {
        let is_read = workload.op == Op::Read;
        let is_fetched = !is_read && workload.size > self.in_capsule;
        let op = match (is_read, is_fetched) {
            (true, _) => Op::Write,
            (_, true) => Op::Read,
            _ => Op::Send,
        };
        // The transfers alone: several processors post and poll them.
        let device = NicProfile { post_ns: 0, poll_ns: 0, ..nic.clone() };
        let transfers = Workload { op, cq_mod: 1, iterations: None, ..*workload };
        let data = Prediction::new(path, &device, &transfers)?;

        let bits = workload.size as f64 * 8.0;
        let (post, poll) = (nic.post_ns as f64, nic.poll_ns as f64);
        let posts_of_data = if is_read || is_fetched { post } else { 0.0 };
        let host_ns = 2.0 * post + poll;
        let target_ns = poll
            + post
            + self.command_ns
            + posts_of_data
            + if is_fetched { poll } else { 0.0 }
            + post;
        let drive_ns = bits / self.drive_bps * 1e9;
        let capsule = |bytes| Message::new(path, nic, Op::Send, bytes).busy_ns;
        let one_way =
            path.one_way_ns + (nic.doorbell_ns + nic.responder_ns + nic.completion_ns) as f64;
        let trip = 2.0 * one_way + capsule(COMMAND) + capsule(RESPONSE);
        let fetch = if is_fetched { path.rtt_ns() + nic.turn_ns() } else { 0.0 };
        let latency_ns = trip
            + fetch
            + data.message.busy_ns
            + host_ns
            + target_ns
            + self.drive_latency_ns
            + drive_ns;
        let outstanding = f64::from(workload.qps) * f64::from(workload.tx_depth);
        let each = |ns: f64, at_once: f64| at_once * bits / ns * 1e9;
        let mut all = data.bounded(Limit::QueueDepth, each(latency_ns, outstanding));
        if is_read {
            // The response is a message too.
            let commands = f64::from(workload.qps) * f64::from(nic.outstanding_wqes) / 2.0;
            all =
                all.bounded(Limit::OutstandingWqes, each(path.rtt_ns() + nic.turn_ns(), commands));
        }
        for (limit, ns, at_once) in [
            (Limit::Program, host_ns, f64::from(workload.qps)),
            (Limit::Target, target_ns, f64::from(self.cores)),
            (Limit::Drives, drive_ns, 1.0),
        ] {
            if ns > 0.0 {
                all = all.bounded(limit, each(ns, at_once));
            }
        }
        let waiting_ns = each(1.0, outstanding) / all.goodput_bps;
        Ok(Prediction { latency_ns: latency_ns.max(waiting_ns), ..all })
    }
}
