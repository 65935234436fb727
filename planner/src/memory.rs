//! Memory that windows need.

use crate::accelerator::Accelerator;
use crate::nic::NicProfile;
use crate::path::Path;
use crate::workload::Workload;
use serde::Serialize;

/// A work queue element and a completion of ConnectX take 64 bytes each (MLX5_SEND_WQE_BB and
/// struct mlx5_cqe64 of rdma-core).
const WQE_BYTES: f64 = 64.0;
const CQE_BYTES: f64 = 64.0;

/// Bytes that a workload occupies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// Send queues of all queue pairs.
    pub send_queue_bytes: f64,
    /// Their completion queues.
    pub completion_queue_bytes: f64,
    /// Registered memory for the posted messages, one buffer each.
    pub buffer_bytes: f64,
    /// Store of the accelerator at the requester's end.
    pub accelerator_near_bytes: f64,
    /// Store of the accelerator at the far end.
    pub accelerator_far_bytes: f64,
    /// Bytes that arrive at a switch port after it has sent PAUSE to the other end of the fibre:
    /// one round trip's worth, per priority.
    pub pfc_headroom_bytes: f64,
}

impl Memory {
    /// Memory of `workload` on `path`.
    pub fn new(
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
        accelerator: &Accelerator,
    ) -> Self {
        let posted = f64::from(workload.qps) * f64::from(workload.tx_depth);
        Memory {
            send_queue_bytes: posted * WQE_BYTES,
            completion_queue_bytes: posted / f64::from(workload.cq_mod) * CQE_BYTES,
            buffer_bytes: posted * workload.size as f64,
            accelerator_near_bytes: accelerator.near_bytes(path, nic),
            accelerator_far_bytes: accelerator.far_bytes(path, nic),
            pfc_headroom_bytes: path.bandwidth_delay_bytes(),
        }
    }

    /// Store with which each of two boxes, which are alike, serves as either end.
    pub fn box_bytes(&self) -> f64 {
        self.accelerator_near_bytes.max(self.accelerator_far_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Op;

    #[test]
    fn pfc_headroom_is_a_round_trip_at_full_rate() {
        let nic = NicProfile::ideal();
        let work = Workload::perftest(Op::Write, 4096, 1, 128);
        let headroom = |km| {
            Memory::new(&Path::of_km(km, 1e11), &nic, &work, &Accelerator::default())
                .pfc_headroom_bytes
        };
        assert_eq!([headroom(10.0), headroom(1000.0)], [1.25e6, 125e6]);
    }
}
