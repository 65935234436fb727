//! Errors of a lab.

use crate::spec::{HostName, LabName};
use longhaul_boxes::runtime_dir::RuntimeDirError;
use longhaul_boxes::{Cause, PathError};
use longhaul_link::LinkError;
use longhaul_switch::SwitchError;
use longhaul_wan_box::ConfigError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a lab does not run, or refuses a request. A message names the cause; the program adds the
/// cure.
#[derive(Debug, Error)]
pub enum Error {
    /// A file of its directory cannot be accessed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The directory around it cannot be used.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The executable for the daemon cannot be found.
    #[error("cannot find this program: {0}")]
    FindProgram(io::Error),
    /// The daemon cannot be started.
    #[error("cannot start the lab: {0}")]
    Start(io::Error),
    /// The spec cannot be serialised.
    #[error("cannot write the lab's spec: {0}")]
    Describe(serde_json::Error),
    /// The daemon ended before it was up; the end of its log, if it wrote one.
    #[error("the lab ended before it was up{}", after_colon(.0.as_deref()))]
    EndedEarly(Option<String>),
    /// The daemon's reason why it cannot run.
    #[error("{0}")]
    Refused(String),
    /// The spec cannot be read.
    #[error("cannot read the lab's spec: {0}")]
    ReadSpec(io::Error),
    /// The input is not a spec.
    #[error("not a lab's spec: {0}")]
    NoSpec(serde_json::Error),
    /// The fibre cannot be created.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A site's box cannot be created.
    #[error(transparent)]
    Box(#[from] ConfigError),
    /// The sites' switches cannot be created.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A transport's rate without a transport.
    #[error("--wan-rate without --accelerate transport")]
    WanRateWithoutTransport,
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    /// A host's port cannot be offered.
    #[error("cannot offer host {host}'s port: {error}")]
    OfferPort {
        /// The host.
        host: HostName,
        /// The cause.
        error: Cause,
    },
    /// A port cannot be recorded.
    #[error("cannot record to {}: {error}", path.display())]
    Record {
        /// The capture file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The driver loop cannot be created.
    #[error("cannot run: {0}")]
    Run(io::Error),
    /// The control thread cannot be started.
    #[error("cannot start the control thread: {0}")]
    ControlThread(io::Error),
    /// Standard error cannot be redirected.
    #[error("cannot send standard error to the log: {0}")]
    Stderr(io::Error),
    /// Another lab has this name.
    #[error("a lab called '{0}' is up already")]
    UpAlready(LabName),
    /// No lab of this name is up.
    #[error("no lab called '{0}' is up")]
    NotUp(LabName),
    /// The spec of a running lab cannot be parsed.
    #[error("{} was written by another version: {error}", path.display())]
    OtherSpec {
        /// Path of the spec.
        path: PathBuf,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// A host's namespaces cannot be entered.
    #[error("cannot enter the network of host {host}: {error}")]
    NoNamespaces {
        /// The host.
        host: HostName,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The lab does not answer.
    #[error("the lab '{lab}' does not answer ({why})")]
    NoAnswer {
        /// Name of the lab.
        lab: LabName,
        /// The log.
        log: PathBuf,
        /// The reason.
        why: String,
    },
    /// The lab's answer cannot be parsed.
    #[error("the lab '{lab}' is of another version ({error})")]
    OtherVersion {
        /// Name of the lab.
        lab: LabName,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// The lab did not end when told to.
    #[error("the lab '{lab}' does not end; see {}", log.display())]
    DoesNotEnd {
        /// Name of the lab.
        lab: LabName,
        /// The log.
        log: PathBuf,
    },
}

fn after_colon(words: Option<&str>) -> String {
    words.map(|words| format!(": {words}")).unwrap_or_default()
}
