//! Where the runs of a campaign take place.

mod lab;
mod machine;
mod ssh;

pub use lab::InLab;
pub use machine::OnMachine;
pub use ssh::{BySsh, SshHosts};

use crate::grid::Settings;
use crate::process::Ended;
use crate::programs::{Launch, Ready, free_tcp_port};
use crate::sample::{Device, of_machine};
use longhaul_bench::Point as Place;
use serde::Deserialize;
use std::error::Error;
use std::ffi::OsString;
use std::io;
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

/// One of the programs' places: the number of a client's or server's, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Client or server.
    pub side: Side,
    /// Its number among those.
    pub number: usize,
}

/// Addresses of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Of its RDMA device.
    pub rdma: String,
    /// For TCP.
    pub tcp: String,
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

/// Why a program failed, as far as the executor is the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Cause and cure, in one line.
    pub why: String,
    /// True if another attempt is in vain.
    pub is_final: bool,
}

/// The command of a program, or why there is none.
pub type Made = Result<Command, Box<dyn Error>>;

/// Sets up paths, and makes the commands of the programs at their ends.
pub trait Executor {
    /// True if paths have the setting `key`. All have those of a [`Topology`](crate::Topology).
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

    /// Addresses of a server on the present path.
    ///
    /// # Errors
    /// Why they are unknown.
    fn addresses(&self, server: usize) -> Result<Addresses, Refusal>;

    /// Name of the host at one end of the present path; `None` if there is one host only.
    fn host(&self, end: End) -> Option<String>;

    /// The verbs devices of the programs whose counters this machine can read.
    fn devices(&self) -> Vec<Device> {
        of_machine()
    }

    /// True if errors have to name the host.
    fn is_remote(&self) -> bool {
        false
    }

    /// A program at one end of the present path, which errors call `name`.
    ///
    /// # Errors
    /// The program does not exist or cannot be run there.
    fn launch(&self, end: End, name: String, words: &[String]) -> Result<Launch, Refusal>;

    /// A server at one end of the present path, with the condition by which it is known to be
    /// ready.
    ///
    /// # Errors
    /// As [`Executor::launch`].
    fn serve(
        &self,
        end: End,
        name: String,
        words: &[String],
        ready: Ready,
    ) -> Result<(Launch, Ready), Refusal> {
        Ok((self.launch(end, name, words)?, ready))
    }

    /// A TCP port that no program of a server's host uses.
    ///
    /// # Errors
    /// The operating system's.
    fn port(&self) -> io::Result<u16> {
        free_tcp_port()
    }

    /// What this executor knows of the failure of a program.
    fn explain(&self, _: &Ended) -> Option<Cause> {
        None
    }
}

fn os_words(words: &[String]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
