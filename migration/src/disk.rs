//! Copies a guest's disk to the destination while the guest runs, as libvirt does: the destination
//! exports its disk by NBD, and the source mirrors its own to it until the switchover.

use crate::drive::{DriveError, End, POLL_INTERVAL, execute};
use crate::qmp::Qmp;
use serde_json::json;
use std::time::{Duration, Instant};

/// Node name of the guest's disk in both QEMUs, and name of its export.
pub const DISK: &str = "disk";
/// Node name of the destination's disk in the source.
const TARGET: &str = "target";
/// The job that mirrors.
const JOB: &str = "mirror";
/// Time limit for the last writes to reach the destination, and for a job to end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Where the destination exports its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its address, at which it listens and to which the source connects.
    pub host: String,
    /// Port of NBD.
    pub port: u16,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Bytes that are copied.
    pub bytes: u64,
    /// Bytes that are not.
    pub left: u64,
    /// Everything is copied, and each write goes to both disks.
    pub is_ready: bool,
}

/// Begins to copy.
pub(crate) fn begin(
    source: &mut Qmp,
    destination: &mut Qmp,
    export: &Export,
) -> Result<(), DriveError> {
    let address = json!({"host": export.host, "port": export.port.to_string()});
    let listen = json!({"addr": {"type": "inet", "data": address}});
    execute(destination, End::Destination, "nbd-server-start", listen)?;
    let disk =
        json!({"type": "nbd", "id": DISK, "node-name": DISK, "name": DISK, "writable": true});
    execute(destination, End::Destination, "block-export-add", disk)?;
    let server = json!({"type": "inet", "host": export.host, "port": export.port.to_string()});
    let target = json!({"driver": "nbd", "node-name": TARGET, "server": server, "export": DISK});
    execute(source, End::Source, "blockdev-add", target)?;
    let mirror = json!({"job-id": JOB, "device": DISK, "target": TARGET, "sync": "full"});
    execute(source, End::Source, "blockdev-mirror", mirror)?;
    Ok(())
}

/// How far the copy is; `None` if there is no such job any more.
pub(crate) fn progress(source: &mut Qmp) -> Result<Option<Copied>, DriveError> {
    let jobs = execute(source, End::Source, "query-block-jobs", json!({}))?;
    let jobs = jobs.as_array().map(Vec::as_slice).unwrap_or_default();
    let job = jobs.iter().find(|job| job["device"] == JOB);
    Ok(job.map(|job| {
        let bytes = job["offset"].as_u64().unwrap_or_default();
        let all = job["len"].as_u64().unwrap_or_default();
        let is_ready = job["ready"] == true;
        Copied { bytes, left: all.saturating_sub(bytes), is_ready }
    }))
}

/// Ends a copy that is ready, with everything that the guest has written: it is stopped.
pub(crate) fn complete(source: &mut Qmp) -> Result<(), DriveError> {
    execute(source, End::Source, "block-job-cancel", json!({"device": JOB}))?;
    let deadline = Instant::now() + ENDS_WITHIN;
    while progress(source)?.is_some() {
        if Instant::now() > deadline {
            return Err(DriveError::DiskNeverEnds);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Ends what has begun of a copy, at both ends, on a best-effort basis: the first error was told.
pub(crate) fn abandon(source: &mut Qmp, destination: &mut Qmp) {
    let force = json!({"device": JOB, "force": true});
    let _ = execute(source, End::Source, "block-job-cancel", force);
    close(destination);
}

/// Ends the export, which nobody needs any more.
pub(crate) fn close(destination: &mut Qmp) {
    let _ = execute(destination, End::Destination, "nbd-server-stop", json!({}));
}
