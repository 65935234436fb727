//! Where the runs of a campaign take place.

mod lab;
mod machine;

pub use lab::InLab;
pub use machine::OnMachine;

use crate::grid::Settings;
use longhaul_bench::Point as Place;
use serde::Deserialize;
use std::error::Error;
use std::ffi::OsString;
use std::net::IpAddr;
use std::process::Command;
use thiserror::Error;

/// One of the two programs of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// It measures; in a lab on host a.
    Client,
    /// It answers; in a lab on host b.
    Server,
}

impl Side {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}

/// Addresses of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Of its RDMA device.
    pub rdma: IpAddr,
    /// For TCP.
    pub tcp: IpAddr,
    /// Why TCP between the hosts does not cross the path, if it does not.
    pub off_path: Option<String>,
}

/// An executor's reason why it cannot do something, in one line.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Refusal {
    /// The refusal for this reason.
    pub fn new(why: impl ToString) -> Self {
        Refusal(why.to_string())
    }
}

/// The command of a program, or why there is none.
pub type Made = Result<Command, Box<dyn Error>>;

/// Sets up paths, and makes the commands of the programs at their ends.
pub trait Executor {
    /// True if paths have the setting `key`.
    fn takes(&self, key: &str) -> bool;

    /// The parameters of results over a path.
    ///
    /// # Errors
    /// A setting that a path cannot have.
    fn parameters(&self, path: &Settings) -> Result<Place, Refusal>;

    /// Sets up a path. Returns true if it is a new one, false if it was there already.
    ///
    /// # Errors
    /// Why the path is not available.
    fn enter(&mut self, path: &Settings) -> Result<bool, Refusal>;

    /// Ends the path, if there is one. Returns what was logged there.
    fn leave(&mut self) -> Option<String>;

    /// Addresses of the server on the present path.
    ///
    /// # Errors
    /// Why they are unknown.
    fn addresses(&self) -> Result<Addresses, Refusal>;

    /// The command of a program at one end of the present path.
    ///
    /// # Errors
    /// The program does not exist or cannot be run there.
    fn command(&self, side: Side, words: &[String]) -> Result<Command, Refusal>;
}

fn os_words(words: &[String]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
