//! Requirements of a goodput target.

use crate::Invalid;
use crate::accelerator::Accelerator;
use crate::nic::NicProfile;
use crate::path::Path;
use crate::predict::Prediction;
use crate::workload::Workload;
use serde::Serialize;

/// Whether and how a target can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// With the given workload.
    Now,
    /// With more queue pairs, or a deeper queue.
    Settings,
    /// Only with an accelerator.
    Accelerator,
    /// Not at all with messages of this size.
    Never,
}

/// Requirements of one message size to reach the target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Needs {
    /// Target goodput, in bits per second.
    pub target_bps: f64,
    /// Whether and how.
    pub reach: Reach,
    /// Messages in flight, over all queue pairs, that the target needs.
    pub in_flight_messages: f64,
    /// Queue pairs with the given NIC; `None` if no number up to [`Needs::QPS_MAX`] suffices.
    pub qps: Option<u32>,
    /// Queue depth of each of these.
    pub tx_depth: u32,
    /// A higher limit of the NIC with which the workload's number of queue pairs suffices; `None`
    /// if the present limit suffices or a higher one does not help.
    pub raised: Option<Raised>,
}

/// More outstanding WQEs instead of more queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Raised {
    /// LOG_MAX_OUTSTANDING_WQE.
    pub log_max_outstanding_wqe: u8,
    /// Queue depth of each queue pair.
    pub tx_depth: u32,
}

impl Needs {
    /// Maximum number of queue pairs: the largest in the published reports (IOWN GF PoC report
    /// 2024-06, appendix F).
    pub const QPS_MAX: u32 = 4096;
    /// Maximum queue depth: a ConnectX's largest max_qp_wr (mlx5, log_max_qp_sz 15).
    pub const TX_DEPTH_MAX: u32 = 32_768;
    /// Queue pairs, and the depth of each, to consider beside an accelerator.
    pub(crate) const BOX_QPS: u32 = 64;
    pub(crate) const BOX_TX_DEPTH: u32 = 1024;
    /// The largest in the published reports.
    const LOG_WQES_MAX: u8 = 14;
    /// Minimum queue depth: perftest's default.
    const TX_DEPTH_MIN: u32 = 128;

    /// Requirements for `target_bps` of goodput.
    ///
    /// # Errors
    ///
    /// As [`Prediction::new`].
    pub fn new(
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
        target_bps: f64,
        accelerator: &Accelerator,
    ) -> Result<Self, Invalid> {
        let now = Prediction::new(path, nic, workload)?;
        let turn_ns = path.rtt_ns() + nic.program_turn_ns() + now.message.busy_ns;
        let in_flight_messages =
            (target_bps * turn_ns / 1e9 / (workload.size as f64 * 8.0)).max(1.0);
        let qps = Self::least_qps(path, nic, workload, target_bps, in_flight_messages)?;
        let tx_depth = tx_depth(in_flight_messages, qps.unwrap_or(Self::QPS_MAX), nic, workload);
        let raised = Self::raised(path, nic, workload, target_bps, in_flight_messages)?;
        let reach = if now.goodput_bps >= target_bps {
            Reach::Now
        } else if qps.is_some() || raised.is_some() {
            Reach::Settings
        } else if Self::boxes_reach(path, nic, workload, target_bps, accelerator)? {
            Reach::Accelerator
        } else {
            Reach::Never
        };
        Ok(Needs { target_bps, reach, in_flight_messages, qps, tx_depth, raised })
    }

    /// Returns the smallest number of queue pairs that reaches the target, each deep enough.
    fn least_qps(
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
        target_bps: f64,
        in_flight: f64,
    ) -> Result<Option<u32>, Invalid> {
        let reaches = |qps: u32| -> Result<bool, Invalid> {
            let depth = tx_depth(in_flight, qps, nic, workload);
            let with =
                Workload { qps, tx_depth: depth, cq_mod: workload.cq_mod.min(depth), ..*workload };
            Ok(Prediction::new(path, nic, &with)?.goodput_bps >= target_bps)
        };
        if !reaches(Self::QPS_MAX)? {
            return Ok(None);
        }
        let (mut fails, mut suffices) = (0, Self::QPS_MAX);
        while suffices - fails > 1 {
            let middle = fails + (suffices - fails) / 2;
            if reaches(middle)? { suffices = middle } else { fails = middle }
        }
        Ok(Some(suffices))
    }

    /// Returns the outstanding WQEs with which the given queue pairs suffice.
    fn raised(
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
        target_bps: f64,
        in_flight: f64,
    ) -> Result<Option<Raised>, Invalid> {
        if workload.op.is_answered() || !nic.is_connectx() {
            return Ok(None);
        }
        for log_max_outstanding_wqe in 7..=Self::LOG_WQES_MAX {
            let with = NicProfile { outstanding_wqes: 1 << log_max_outstanding_wqe, ..nic.clone() };
            let tx_depth = tx_depth(in_flight, workload.qps, &with, workload);
            let deep = Workload { tx_depth, cq_mod: workload.cq_mod.min(tx_depth), ..*workload };
            if Prediction::new(path, &with, &deep)?.goodput_bps >= target_bps {
                let is_more = with.outstanding_wqes > nic.outstanding_wqes;
                return Ok(is_more.then_some(Raised { log_max_outstanding_wqe, tx_depth }));
            }
        }
        Ok(None)
    }

    /// `true` if boxes reach the target, for WRITEs and SENDs possibly with more queue pairs or
    /// depth at LAN distance.
    fn boxes_reach(
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
        target_bps: f64,
        accelerator: &Accelerator,
    ) -> Result<bool, Invalid> {
        let reach = |workload: &Workload| -> Result<bool, Invalid> {
            let alone = accelerator.predict(path, nic, workload)?;
            let transport = accelerator.predict_transport(path, nic, workload)?;
            Ok(alone.goodput_bps.max(transport.goodput_bps) >= target_bps)
        };
        let wide = Workload {
            qps: workload.qps.max(Self::BOX_QPS),
            tx_depth: workload.tx_depth.max(Self::BOX_TX_DEPTH),
            ..*workload
        };
        Ok(reach(workload)? || (!workload.op.is_answered() && reach(&wide)?))
    }
}

/// Returns the queue depth, a power of two, with which `qps` queue pairs keep `in_flight` messages
/// in flight (at most the NIC's limit) while the program handles two lots, so that the NIC never
/// waits for it.
fn tx_depth(in_flight: f64, qps: u32, nic: &NicProfile, workload: &Workload) -> u32 {
    let allowed = nic.outstanding(workload.op.is_answered()) as f64;
    let each =
        (in_flight / f64::from(qps)).ceil().min(allowed).min(f64::from(Needs::TX_DEPTH_MAX)) as u32;
    let least = each.saturating_add(workload.cq_mod.saturating_mul(2));
    least.clamp(Needs::TX_DEPTH_MIN, Needs::TX_DEPTH_MAX).next_power_of_two()
}
