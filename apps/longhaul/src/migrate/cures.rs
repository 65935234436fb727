//! Remedies of failed migrations.

use crate::problem::Problem;
use longhaul_migration::End;
use longhaul_migration::drive::DriveError;
use longhaul_migration::guest::LoadError;
use longhaul_migration::machine::MachineError;
use longhaul_migration::qmp::QmpError;

const WITHOUT_RDMA: &str = "this QEMU is built without RDMA: install one that has it (Debian's \
                            qemu-system-x86), or use --transport tcp";

impl From<DriveError> for Problem {
    fn from(error: DriveError) -> Self {
        let cause = error.to_string();
        let cure = match &error {
            DriveError::Qmp { error: QmpError::Refused { description, .. }, .. } => {
                match description {
                    text if text.contains("unknown migration protocol") => WITHOUT_RDMA,
                    text if text.contains("RDMA") => {
                        "check that both hosts have an RDMA device ('longhaul exec' gives one) and \
                         reach each other"
                    }
                    _ => return Problem::plain(cause),
                }
            }
            DriveError::Qmp { error, .. } => return of_qmp(error, &cause),
            DriveError::NotReady { end: End::Source, .. } => {
                "it has no guest to migrate: name the QEMU that has it first"
            }
            DriveError::NotReady { end: End::Destination, .. } => {
                "start the destination with the source's machine and '-incoming defer'"
            }
            DriveError::NoCapability { name: "rdma-pin-all", .. } => WITHOUT_RDMA,
            DriveError::NoCapability { .. } => "use a newer QEMU, or another --transport",
            DriveError::Failed(_) => {
                "see what the destination's QEMU printed; check that it is reachable, and that \
                 both have the same machine"
            }
            DriveError::AfterSending(_) => {
                "if you know that it never ran on the destination, 'cont' by QMP resumes it on the \
                 source"
            }
            DriveError::Disk(_) | DriveError::DiskNeverEnds => {
                "see what both QEMUs printed; check that the destination's disk has room and that \
                 its port is reachable"
            }
            DriveError::NeverRuns => "see what the destination's QEMU printed",
        };
        Problem::new(cause, cure)
    }
}

impl From<(End, QmpError)> for Problem {
    fn from((end, error): (End, QmpError)) -> Self {
        of_qmp(&error, &format!("{end}: {error}"))
    }
}

impl From<(End, MachineError)> for Problem {
    fn from((end, error): (End, MachineError)) -> Self {
        let cause = format!("{end}: {error}");
        match error {
            MachineError::Silent { .. } => {
                Problem::new(cause, "with --accel kvm, try tcg; on a busy machine, less --memory")
            }
            MachineError::Qmp(error) => of_qmp(&error, &cause),
            MachineError::Ended(_) | MachineError::Start(_) | MachineError::Order(_) => {
                Problem::plain(cause)
            }
        }
    }
}

impl From<LoadError> for Problem {
    fn from(error: LoadError) -> Self {
        let cure = match error {
            LoadError::Memory => "use for example --memory 1G",
            LoadError::WorkingSet(..) => {
                "use a smaller --working-set, of 4 KiB at least, or --dirty 0"
            }
            LoadError::Rate => "use a smaller --dirty",
        };
        Problem::new(error.to_string(), cure)
    }
}

/// `cause` with the remedy of a failed conversation.
fn of_qmp(error: &QmpError, cause: &str) -> Problem {
    let cure = match error {
        QmpError::Connect { .. } => {
            "start QEMU with '-qmp unix:PATH,server=on,wait=off' and name that path"
        }
        QmpError::NoGreeting(_) => {
            "a QMP socket serves one client at a time: end the other (libvirt?), or give QEMU a \
             second '-qmp'"
        }
        QmpError::NotQmp { .. } => "name a socket of '-qmp', not of '-monitor' or of a guest",
        QmpError::Closed(_) => "see what that QEMU printed",
        QmpError::Refused { .. } | QmpError::Silent { .. } => return Problem::plain(cause),
    };
    Problem::new(cause, cure)
}
