//! Measurement campaigns: programs over a grid of points.
//!
//! A [`Campaign`] is read from a file. [`Campaign::points`] expands its grid for an [`Executor`],
//! which sets up paths and makes the commands of their hosts. [`measure`] runs what a [`Store`] has
//! no result of, and reports progress as [`News`].
#![forbid(unsafe_code)]

mod executor;
mod file;
mod grid;
mod pair;
pub mod parser;
mod process;
mod program;
mod run;
pub mod slurm;
mod store;
mod summary;
mod template;

pub use executor::{Addresses, Executor, InLab, Made, OnMachine, Refusal, Side};
pub use file::{Campaign, FileError, FileFault, Order};
pub use grid::{Axis, Point, Run, Settings, Value};
pub use pair::{Fault, Output, Pair, Ready, free_tcp_port};
pub use process::{Ended, Group, Process};
pub use program::Program;
pub use run::{News, RunError, Tally, measure, missing};
pub use store::{Digest, Store, StoreError};
pub use summary::{Row, rows};
pub use template::{Template, TemplateError};
