//! Measurements of this machine: [`boxes`] under load in real time, and the software [`rnic`].
//!
//! A bench measures the cells of a table one after another and returns an outcome for each. It
//! reports [`Progress`] to a callback, which can end the measurement. Where box or responder run in
//! a second process, the caller provides its command line, and that process calls `serve`.
#![forbid(unsafe_code)]

pub mod boxes;
mod figures;
mod folder;
mod machine;
mod pinning;
mod progress;
pub mod rnic;

pub use figures::Figures;
pub use folder::FolderError;
pub use machine::Machine;
pub use pinning::{PinError, pin, start_unpinned};
pub use progress::{Pass, Progress, Tell, Work};

use std::io;
use std::process::ExitStatus;

/// How a process ended, or why that is unknown.
fn end_of(ended: &io::Result<ExitStatus>) -> String {
    ended.as_ref().map_or_else(ToString::to_string, ToString::to_string)
}
