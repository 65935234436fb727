//! The prediction for live migration.
//!
//! The disk goes first, then the memory in passes. A guest writes its working set in turn, so a
//! pass of time t leaves the part t / T of it dirty, T being a turn with its pause: each pass takes
//! a constant fraction of the one before, and the passes are a geometric series. A pass ends when
//! what is left takes the downtime limit, and the last one when nothing has become dirty beside it.

use crate::Invalid;
use crate::nic::NicProfile;
use crate::path::Path;
use crate::predict::Prediction;
use crate::workload::{Op, Workload};

/// A guest with its disk, and the limits of its migration. Rates are infinite where only the path
/// limits them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Migration {
    /// Time before the first byte.
    pub setup_ns: f64,
    /// Bytes of the disk, which are copied before the memory.
    pub disk_bytes: f64,
    /// Rate of the disk.
    pub disk_bps: f64,
    /// Bytes of memory that the first pass sends.
    pub memory_bytes: f64,
    /// Rate at which the source passes memory to the transport.
    pub memory_bps: f64,
    /// Part of the memory that the guest writes in turn, in bytes; 0: it is idle.
    pub working_set_bytes: f64,
    /// Rate of these writes, without the pauses.
    pub dirty_bps: f64,
    /// Pause of the guest after each turn.
    pub dirty_pause_ns: f64,
    /// Maximum time that the rest may take when the guest is stopped.
    pub downtime_limit_ns: f64,
    /// Time after which the migration is cancelled.
    pub timeout_ns: f64,
}

/// How a migration ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest runs at the destination.
    Arrival,
    /// The passes would end, but after the timeout.
    TooSlow,
    /// The guest dirties its working set as fast as it is sent.
    Diverges,
}

/// Phases of a migration, without regard to its timeout but for the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Migrated {
    /// How it ends.
    pub end: End,
    /// Time before the first byte.
    pub setup_ns: f64,
    /// Copy of the disk.
    pub disk_ns: f64,
    /// Passes while the guest runs; infinite if they diverge.
    pub pre_copy_ns: f64,
    /// From the guest's stop until the destination has everything.
    pub downtime_ns: f64,
    /// Number of passes.
    pub passes: f64,
    /// Bytes of memory sent.
    pub memory_bytes: f64,
}

impl Migrated {
    /// All phases together.
    pub fn total_ns(&self) -> f64 {
        self.setup_ns + self.disk_ns + self.pre_copy_ns + self.downtime_ns
    }
}

impl Migration {
    /// Predicts the migration over `path` between two NICs `nic`, by the WRITEs of `workload`. What
    /// goes over TCP is the same with TCP's rate as `memory_bps`, and its window as the workload's
    /// size and depth.
    ///
    /// # Errors
    /// A value of the path or workload is out of range.
    pub fn predict(
        &self,
        path: &Path,
        nic: &NicProfile,
        workload: &Workload,
    ) -> Result<Migrated, Invalid> {
        let writes = Workload { op: Op::Write, iterations: None, ..*workload };
        let network = Prediction::new(path, nic, &writes)?;
        let byte_ns = |bps: f64| 8e9 / bps.min(network.goodput_bps);
        let disk_byte_ns = byte_ns(self.disk_bps);
        let memory_byte_ns = byte_ns(self.memory_bps);
        // Each phase ends with its last acknowledgement.
        let trip_ns = path.rtt_ns() + nic.turn_ns();
        let disk_ns =
            if self.disk_bytes > 0.0 { self.disk_bytes * disk_byte_ns + trip_ns } else { 0.0 };
        let passes = self.passes(memory_byte_ns, workload.size as f64);
        let pre_copy_ns = passes.bytes * memory_byte_ns;
        let downtime_ns = (passes.rest + workload.size as f64) * memory_byte_ns + trip_ns;
        let total_ns = self.setup_ns + disk_ns + pre_copy_ns + downtime_ns;
        let end = if passes.bytes.is_infinite() {
            End::Diverges
        } else if total_ns <= self.timeout_ns {
            End::Arrival
        } else {
            End::TooSlow
        };
        Ok(Migrated {
            end,
            setup_ns: self.setup_ns,
            disk_ns,
            pre_copy_ns,
            downtime_ns,
            passes: passes.count,
            memory_bytes: passes.bytes + passes.rest,
        })
    }

    /// The passes, if a byte takes `byte_ns` and a message has `size` bytes.
    fn passes(&self, byte_ns: f64, size: f64) -> Passes {
        let rest = (self.downtime_limit_ns / byte_ns).max(size).min(self.memory_bytes);
        let first = self.memory_bytes - rest;
        let turn_ns = self.working_set_bytes * 8e9 / self.dirty_bps + self.dirty_pause_ns;
        let mut passes = Passes { count: 1.0, bytes: first, rest };
        if self.working_set_bytes > 0.0 {
            let dirtied = self.working_set_bytes * (first * byte_ns / turn_ns).min(1.0);
            // What is still to be sent does not become dirty once more.
            let share = (self.working_set_bytes - rest).max(0.0) * byte_ns / turn_ns;
            let further = ((size / dirtied).ln() / share.ln()).ceil().max(1.0);
            let endless = share >= 1.0;
            passes.count += if endless { f64::INFINITY } else { further };
            passes.bytes += if endless { f64::INFINITY } else { dirtied / (1.0 - share) };
        }
        passes
    }
}

/// The passes while the guest runs.
struct Passes {
    count: f64,
    /// Bytes that they send.
    bytes: f64,
    /// Bytes left when the guest is stopped.
    rest: f64,
}
