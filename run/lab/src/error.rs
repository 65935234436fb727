//! What can go wrong with a lab.

use crate::spec::{HostName, LabName};
use longhaul_boxes::runtime_dir::RuntimeDirError;
use longhaul_boxes::{Cause, PathError};
use longhaul_link::LinkError;
use longhaul_switch::SwitchError;
use longhaul_wan_box::ConfigError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a lab does not run, or does not do what it is told. A message names the cause; what a user
/// can do about it is for the program to say.
#[derive(Debug, Error)]
pub enum Error {
    /// A file of its directory cannot be had.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The directory around it cannot be used.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The program that is to be its daemon cannot be found.
    #[error("cannot find this program: {0}")]
    FindProgram(io::Error),
    /// The daemon cannot be started.
    #[error("cannot start the lab: {0}")]
    Start(io::Error),
    /// The spec cannot be written.
    #[error("cannot describe the lab: {0}")]
    Describe(serde_json::Error),
    /// The daemon ended before it was up: its last words, if it had any.
    #[error("the lab ended before it was up{}", after_colon(.0.as_deref()))]
    EndedEarly(Option<String>),
    /// The daemon says why it cannot run.
    #[error("{0}")]
    Refused(String),
    /// The spec cannot be read.
    #[error("cannot read the lab's spec: {0}")]
    ReadSpec(io::Error),
    /// What was read is no spec.
    #[error("not a lab's spec: {0}")]
    NoSpec(serde_json::Error),
    /// The fibre cannot be made.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A site's box cannot be made.
    #[error(transparent)]
    Box(#[from] ConfigError),
    /// The sites' switches cannot be made.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    /// A host's port cannot be offered.
    #[error("cannot offer host {host}'s port: {error}")]
    OfferPort {
        /// The host.
        host: HostName,
        /// Why.
        error: Cause,
    },
    /// What passes a port cannot be recorded.
    #[error("cannot record to {}: {error}", path.display())]
    Record {
        /// The capture file.
        path: PathBuf,
        /// What the system answers.
        error: io::Error,
    },
    /// The loop that moves frames cannot be made.
    #[error("cannot run: {0}")]
    Run(io::Error),
    /// The thread that answers at the control socket cannot be started.
    #[error("cannot start the control thread: {0}")]
    ControlThread(io::Error),
    /// Standard error stays where it was.
    #[error("cannot send standard error to the log: {0}")]
    Stderr(io::Error),
    /// Another lab has the name.
    #[error("a lab called '{0}' is up already")]
    UpAlready(LabName),
    /// There is no lab of this name.
    #[error("no lab called '{0}' is up")]
    NotUp(LabName),
    /// The spec of a running lab cannot be understood.
    #[error("{} was written by another version: {error}", path.display())]
    OtherSpec {
        /// Where it is.
        path: PathBuf,
        /// What cannot be understood.
        error: serde_json::Error,
    },
    /// A host has no slot for another program.
    #[error("host {host} runs {slots} programs already")]
    HostIsFull {
        /// The host.
        host: HostName,
        /// How many it can run.
        slots: usize,
    },
    /// The lab does not answer.
    #[error("the lab '{lab}' does not answer ({why})")]
    NoAnswer {
        /// Its name.
        lab: LabName,
        /// Its log.
        log: PathBuf,
        /// What it does instead.
        why: String,
    },
    /// The lab's answer cannot be understood.
    #[error("the lab '{lab}' is of another version ({error})")]
    OtherVersion {
        /// Its name.
        lab: LabName,
        /// What cannot be understood.
        error: serde_json::Error,
    },
    /// The lab was told to end, and does not.
    #[error("the lab '{lab}' does not end; see {}", log.display())]
    DoesNotEnd {
        /// Its name.
        lab: LabName,
        /// Its log.
        log: PathBuf,
    },
}

fn after_colon(words: Option<&str>) -> String {
    words.map(|words| format!(": {words}")).unwrap_or_default()
}
