//! Errors of a box, from its plan to its end.

use crate::control::ControlError;
use crate::cores::CoresError;
use crate::plan::PlanError;
use crate::port::PortError;
use crate::privileges::PrivilegesError;
use crate::replace::ReplaceError;
use crate::settings::SettingsError;
use longhaul_health::Address;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// An error of another crate.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a box does not run, or refuses a request. A message names the cause; the program adds the
/// cure.
#[derive(Debug, Error)]
pub enum Error {
    /// The plan cannot be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The settings contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A pair cannot be made.
    #[error("pair {pair}: {error}")]
    OfPair {
        /// The pair's name.
        pair: String,
        /// The cause.
        error: Box<Error>,
    },
    /// The cores are unavailable.
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
        /// The error of the operating system.
        error: io::Error,
    },
    /// A thread of a pair cannot be started.
    #[error("pair {pair}: cannot run: {error}")]
    Run {
        /// The pair's name.
        pair: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Privileges cannot be dropped.
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
    /// The control socket cannot be served.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The running box is not replaced.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The process that guards the ports' carrier cannot be started.
    #[error("cannot guard the carrier of the ports: {0}")]
    Guard(io::Error),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    /// The address for health and metrics cannot be bound.
    #[error("cannot answer at --health {address}: {error}")]
    Health {
        /// The address.
        address: Address,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Health and metrics cannot be served.
    #[error("cannot answer by HTTP: {0}")]
    Http(io::Error),
    /// The box has no configuration file.
    #[error("'{0}' was started without --config: there is no file to reread")]
    NoFile(String),
    /// The new configuration differs in keys that need a restart.
    #[error("nothing was changed, because this needs a restart: {}", .0.join(", "))]
    TakesRestart(Vec<String>),
    /// The new configuration is invalid for a running pair.
    #[error("nothing was changed: pair {pair}: {error}")]
    NothingChanged {
        /// The pair's name.
        pair: String,
        /// The cause.
        error: SettingsError,
    },
    /// A running element refuses the new configuration.
    #[error("pair {pair}: {why}")]
    Refused {
        /// The pair's name.
        pair: String,
        /// The element's reason.
        why: String,
    },
    /// The box has no flows to drain.
    #[error("'{0}' has no flows to drain")]
    NoFlows(String),
}

impl Error {
    /// True if the box's configuration is at fault, so that it cannot start until that changes.
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Error::Plan(_) | Error::Settings(_) | Error::Port(PortError::NoDpdk(_)) => true,
            Error::OfPair { error, .. } => error.is_of_configuration(),
            _ => false,
        }
    }
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
    /// An error of `action` on the file at `path`.
    pub fn new(action: &'static str, path: &Path, error: io::Error) -> Self {
        PathError { action, path: path.to_owned(), error }
    }
}
