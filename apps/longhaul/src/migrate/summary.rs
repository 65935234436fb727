//! What a migration measured, for people and programs.

use crate::sim::INTERRUPTED;
use longhaul_boxes::quantity::Size;
use longhaul_lab::Spec;
use longhaul_migration::guest::{Load, Report};
use longhaul_migration::{Migration, Outcome, Reason, Transport};
use serde::Serialize;
use std::time::Duration;

/// Exit code where the guest is lost or its memory is wrong.
const FAILED: u8 = 1;

/// One migration.
#[derive(Debug, Serialize)]
pub struct Summary {
    #[serde(rename = "longhaul_version")]
    version: &'static str,
    transport: String,
    /// Of TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guest: Option<Guest>,
    outcome: &'static str,
    /// Why it did not finish.
    reason: Option<String>,
    total_s: f64,
    phases: Option<Phases>,
    passes: u64,
    transferred_bytes: u64,
    gbit_per_s: f64,
    /// The guest's pause as QEMU measures it.
    downtime_ms: Option<u64>,
    /// The guest's pause as its words show it.
    silence_ms: Option<u64>,
    /// The copy of its disk, before its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<Disk>,
    /// The guest's memory at the end.
    checked: Option<Checked>,
    /// Without regard to the guest's memory.
    #[serde(skip)]
    exit_code: u8,
}

#[derive(Debug, Serialize)]
struct Path {
    distance_km: f64,
    rate_bps: u64,
    loss: f64,
    accelerate: String,
    summary: String,
}

#[derive(Debug, Serialize)]
struct Guest {
    memory_bytes: u64,
    working_set_bytes: u64,
    dirty_bytes_per_s: u64,
    /// What it reached during the migration; `null` if that was too short to tell.
    dirtied_bytes_per_s: Option<f64>,
    accel: String,
}

#[derive(Debug, Serialize)]
struct Phases {
    setup_s: f64,
    precopy_s: f64,
    stop_and_copy_s: f64,
    activation_s: f64,
}

/// The copy of a disk.
#[derive(Debug, Serialize)]
struct Disk {
    bytes: u64,
    seconds: f64,
    gbit_per_s: f64,
    /// Bytes that differ at the end; `null` if the migration did not finish.
    wrong_bytes: Option<u64>,
}

/// The guest's verdict on its memory.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Side on which it runs.
    pub at: String,
    /// Pages that it checked there, all of them at least once.
    pub pages: u64,
    /// Pages that were wrong since the guest's start.
    pub wrong: u64,
    /// The first of them.
    pub first_wrong: Option<u64>,
}

impl Checked {
    /// From the guest's `report` on side `at`, of which `before` were checked elsewhere.
    pub fn new(at: String, report: &Report, before: u64) -> Self {
        Checked {
            at,
            pages: report.checked.saturating_sub(before),
            wrong: report.wrong,
            first_wrong: (report.wrong > 0).then_some(report.first_wrong),
        }
    }
}

fn ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

impl Summary {
    /// Of a migration of any guest.
    pub fn of(transport: Transport, migration: &Migration) -> Self {
        let exit_code = match migration.outcome {
            Outcome::DidNotFinish { source_runs: false, .. } => FAILED,
            Outcome::DidNotFinish { reason: Reason::Interrupted, .. } => INTERRUPTED,
            _ => 0,
        };
        let (outcome, reason, phases) = match &migration.outcome {
            Outcome::Completed(phases) => {
                let [setup_s, precopy_s, stop_and_copy_s, activation_s] =
                    [phases.setup, phases.precopy, phases.stop_and_copy, phases.activation]
                        .map(|phase| phase.as_secs_f64());
                let phases = Phases { setup_s, precopy_s, stop_and_copy_s, activation_s };
                ("completed", None, Some(phases))
            }
            Outcome::DidNotFinish { reason, source_runs } => {
                let then = match source_runs {
                    true => "",
                    false => "; the guest was not seen to run on the source again",
                };
                ("did not finish", Some(format!("{reason}{then}")), None)
            }
        };
        let seconds = migration.total.as_secs_f64();
        Summary {
            version: env!("CARGO_PKG_VERSION"),
            transport: transport.to_string(),
            congestion_control: None,
            path: None,
            guest: None,
            outcome,
            reason,
            total_s: seconds,
            phases,
            passes: migration.passes,
            transferred_bytes: migration.transferred,
            gbit_per_s: migration.transferred as f64 * 8e-9 / seconds.max(1e-3),
            downtime_ms: migration.downtime.map(ms),
            silence_ms: None,
            disk: None,
            checked: None,
            exit_code,
        }
    }

    /// Adds the fibre.
    pub fn over(&mut self, spec: &Spec) {
        self.path = Some(Path {
            distance_km: spec.distance.km(),
            rate_bps: spec.rate.as_bps(),
            loss: spec.loss,
            accelerate: spec.accelerate.to_string(),
            summary: spec.summary(),
        });
    }

    /// Adds the congestion control of TCP.
    pub fn with_congestion(&mut self, name: Option<String>) {
        self.congestion_control = name;
    }

    /// Adds what is known of the guest of `longhaul migrate run`.
    pub fn with_guest(&mut self, load: &Load, accel: String, dirtied_bytes_per_s: Option<f64>) {
        self.guest = Some(Guest {
            memory_bytes: load.memory,
            working_set_bytes: load.working_set,
            dirty_bytes_per_s: load.dirty_per_s,
            dirtied_bytes_per_s,
            accel,
        });
    }

    /// Adds what the guest said at the end.
    pub fn with_words(&mut self, silence: Option<Duration>, checked: Option<Checked>) {
        self.silence_ms = silence.map(ms);
        self.checked = checked;
    }

    /// Adds the copy of the disk, of which `wrong` bytes differ.
    pub fn with_disk(&mut self, size: Size, time: Duration, wrong: Option<u64>) {
        let (bytes, seconds) = (size.bytes(), time.as_secs_f64());
        let gbit_per_s = bytes as f64 * 8e-9 / seconds.max(1e-3);
        self.disk = Some(Disk { bytes, seconds, gbit_per_s, wrong_bytes: wrong });
    }

    /// The exit code of a command with this result.
    pub fn exit_code(&self) -> u8 {
        let has_wrong_disk = self.disk.as_ref().is_some_and(|disk| disk.wrong_bytes > Some(0));
        match &self.checked {
            Some(checked) if checked.wrong > 0 => FAILED,
            _ if has_wrong_disk => FAILED,
            _ => self.exit_code,
        }
    }
}

/// The text form.
pub fn text(summary: &Summary) -> String {
    let mut text = summary.transport.clone();
    if let Some(name) = &summary.congestion_control {
        text += &format!(" ({name})");
    }
    if let Some(guest) = &summary.guest {
        let size = Size::from_bytes;
        text += &format!(
            ", a guest of {} that dirties {}/s of {}",
            size(guest.memory_bytes),
            size(guest.dirty_bytes_per_s),
            size(guest.working_set_bytes)
        );
    }
    if let Some(path) = &summary.path {
        text += &format!(", over {}", path.summary);
    }
    text += "\n";
    text += &match &summary.reason {
        Some(reason) => format!("  did not finish in {:.1} s: {reason}\n", summary.total_s),
        None => format!("  completed in {:.2} s\n", summary.total_s),
    };
    if let Some(disk) = &summary.disk {
        let wrong = disk.wrong_bytes.map(|bytes| format!(", {bytes} bytes differ"));
        text += &format!(
            "  before that a disk of {} in {:.2} s, {:.3} Gbit/s{}\n",
            Size::from_bytes(disk.bytes),
            disk.seconds,
            disk.gbit_per_s,
            wrong.unwrap_or_default()
        );
    }
    if let Some(phases) = &summary.phases {
        text += &format!(
            "  set-up {:.3} s, pre-copy {:.3} s, stop-and-copy {:.3} s, activation {:.3} s\n",
            phases.setup_s, phases.precopy_s, phases.stop_and_copy_s, phases.activation_s
        );
    }
    let passes = if summary.passes == 1 { "pass" } else { "passes" };
    text += &format!(
        "  {:.1} MiB in {} {passes}, {:.3} Gbit/s on average\n",
        summary.transferred_bytes as f64 / f64::from(1 << 20),
        summary.passes,
        summary.gbit_per_s
    );
    if let Some(downtime) = summary.downtime_ms {
        let silence = summary.silence_ms.map(|ms| format!(", guest silent for {ms} ms"));
        text += &format!("  downtime {downtime} ms{}\n", silence.unwrap_or_default());
    }
    let dirtied = summary.guest.as_ref().and_then(|guest| guest.dirtied_bytes_per_s);
    if let Some(per_s) = dirtied {
        let mib = per_s / f64::from(1 << 20);
        let gbit = per_s * 8e-9;
        text += &format!("  the guest wrote {mib:.1} MiB/s meanwhile, {gbit:.2} Gbit/s\n");
    }
    if let Some(checked) = &summary.checked {
        text += &format!("  {} pages checked at the {}, ", checked.pages, checked.at);
        text += &match checked.first_wrong {
            None => "0 wrong\n".to_owned(),
            Some(first) => format!("{} wrong, the first is page {first}\n", checked.wrong),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output;
    use longhaul_migration::drive;

    fn migration(outcome: Outcome) -> Migration {
        let downtime = Some(Duration::from_millis(70));
        let total = Duration::from_secs(2);
        Migration { outcome, total, disk: None, passes: 3, transferred: 500_000_000, downtime }
    }

    #[test]
    fn a_completed_migration_has_phases_and_a_verdict() {
        let second = Duration::from_millis(500);
        let phases = drive::Phases {
            setup: second,
            precopy: second,
            stop_and_copy: second,
            activation: second,
        };
        let migration = migration(Outcome::Completed(phases));
        let mut summary = Summary::of(Transport::RdmaPinAll, &migration);
        let report = Report { checked: 150, wrong: 1, first_wrong: 7, ..Report::default() };
        let checked = Checked::new("destination".to_owned(), &report, 50);
        summary.with_words(Some(Duration::from_millis(80)), Some(checked));
        let said = text(&summary);
        for part in [
            "rdma-pin-all\n  completed in 2.00 s\n",
            "set-up 0.500 s, pre-copy 0.500 s",
            "in 3 passes, 2.000 Gbit/s",
            "downtime 70 ms, guest silent for 80 ms",
            "100 pages checked at the destination, 1 wrong, the first is page 7",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(summary.exit_code(), 1);
        let line = output::to_line(&summary).unwrap();
        assert_eq!(line.lines().count(), 1);
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&json["phases"]["setup_s"], &json["checked"]["wrong"]),
            (&0.5.into(), &1.into())
        );
        assert_eq!((&json["outcome"], &json["reason"]), (&"completed".into(), &().into()));
    }

    #[test]
    fn a_migration_that_did_not_finish_says_why() {
        let reason = Reason::TooSlow { left: 1 << 20, sent_per_s: 1e6 };
        let outcome = Outcome::DidNotFinish { reason, source_runs: false };
        let summary = Summary::of(Transport::Tcp, &migration(outcome));
        let said = text(&summary);
        assert!(said.contains("did not finish in 2.0 s: too slow: 1.0 MiB are left"), "{said}");
        assert!(said.contains("was not seen to run on the source again"), "{said}");
        let mut copied = summary;
        copied.with_disk(Size::from_bytes(1 << 30), Duration::from_secs(2), Some(3));
        let said = text(&copied);
        assert!(said.contains("a disk of 1 GiB in 2.00 s, 4.295 Gbit/s, 3 bytes differ"), "{said}");
        assert_eq!(copied.exit_code(), 1);
        let summary = copied;
        assert_eq!(summary.exit_code(), 1);
        for (reason, code) in [(Reason::Interrupted, 130), (Reason::InSetup, 0)] {
            let outcome = Outcome::DidNotFinish { reason, source_runs: true };
            assert_eq!(Summary::of(Transport::Tcp, &migration(outcome)).exit_code(), code);
        }
    }
}
