//! Measurement campaigns: programs over a grid of points.
//!
//! A [`Campaign`] is read from a file. [`Campaign::points`] expands its grid for an [`Executor`],
//! which sets up paths and makes the commands of their hosts. [`measure`] runs what a [`Store`] has
//! no result of, and reports progress as [`News`].
#![forbid(unsafe_code)]

mod environment;
mod executor;
mod file;
mod grid;
pub mod parser;
mod process;
mod program;
mod programs;
mod published;
mod run;
pub mod sample;
pub mod slurm;
mod store;
mod summary;
mod template;
mod topology;

pub use environment::environment;
pub use executor::{
    Addresses, BySsh, Cause, End, Executor, InLab, Made, OnMachine, Refusal, Side, SshHosts,
};
pub use file::{Campaign, FileError, FileFault, Order, Site};
pub use grid::{Axis, Point, Run, Settings, Value};
pub use process::{Ended, Group, Interruption, Process};
pub use program::Program;
pub use programs::{Fault, Launch, Output, Programs, Ready, free_tcp_port};
pub use published::{Compared, Published, Statistic};
pub use run::{News, RunError, Tally, measure, missing};
pub use store::{Digest, Store, StoreError};
pub use summary::{Row, rows};
pub use template::{Template, TemplateError};
pub use topology::Topology;
