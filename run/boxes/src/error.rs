//! What can go wrong with a box, from its plan to its end.

use crate::control::ControlError;
use crate::cores::CoresError;
use crate::plan::PlanError;
use crate::port::PortError;
use crate::privileges::PrivilegesError;
use crate::settings::SettingsError;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// An error of somebody else's.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a box does not run, or does not do what it is told. A message names the cause; what a user
/// can do about it is for the program to say.
#[derive(Debug, Error)]
pub enum Error {
    /// Its plan cannot be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Its settings make no sense together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A pair of it cannot be made.
    #[error("pair {pair}: {error}")]
    OfPair {
        /// The pair's name.
        pair: String,
        /// Why.
        error: Box<Error>,
    },
    /// Its cores cannot be had.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// A port cannot be opened or recorded.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The cores of a pair cannot share its ports.
    #[error("pair {pair}: cannot share its ports: {error}")]
    Share {
        /// The pair's name.
        pair: String,
        /// What the system answers.
        error: io::Error,
    },
    /// A pair's thread cannot be started.
    #[error("pair {pair}: cannot run: {error}")]
    Run {
        /// The pair's name.
        pair: String,
        /// What the system answers.
        error: io::Error,
    },
    /// Privileges cannot be given up.
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
    /// The control socket cannot be served.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    /// The address for health and metrics cannot be had.
    #[error("cannot answer at --health {address}: {error}")]
    Health {
        /// The address.
        address: SocketAddr,
        /// What the system answers.
        error: io::Error,
    },
    /// Health and metrics cannot be served.
    #[error("cannot answer by HTTP: {0}")]
    Http(io::Error),
    /// The box has no configuration file.
    #[error("'{0}' was started without --config: there is no file to read again")]
    NoFile(String),
    /// A configuration differs in what cannot change while the box runs.
    #[error("nothing was changed, because this takes a restart: {}", .0.join(", "))]
    TakesRestart(Vec<String>),
    /// A configuration makes no sense for a pair that runs.
    #[error("nothing was changed: pair {pair}: {error}")]
    NothingChanged {
        /// The pair's name.
        pair: String,
        /// Why.
        error: SettingsError,
    },
    /// A running element refuses a configuration.
    #[error("pair {pair}: {why}")]
    Refused {
        /// The pair's name.
        pair: String,
        /// What it says.
        why: String,
    },
    /// The box has no flows to drain.
    #[error("'{0}' has no flows to drain")]
    NoFlows(String),
}

/// An operating system error on a path.
#[derive(Debug, Error)]
#[error("cannot {action} {}: {error}", .path.display())]
pub struct PathError {
    action: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl PathError {
    /// `error` while trying to `action` what is at `path`.
    pub fn new(action: &'static str, path: &Path, error: io::Error) -> Self {
        PathError { action, path: path.to_owned(), error }
    }
}
