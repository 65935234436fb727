//! All programs on this machine.

use super::{Addresses, End, Executor, Made, Refusal, os_words};
use crate::grid::Settings;
use crate::programs::Launch;
use crate::topology::Topology;
use longhaul_bench::Point as Place;
use std::ffi::OsString;
use std::net::Ipv4Addr;

/// Runs programs on this machine, over whatever network and devices it has.
pub struct OnMachine<F> {
    command: F,
    entered: Option<Settings>,
}

impl<F: Fn(&[OsString]) -> Made> OnMachine<F> {
    /// An executor whose programs `command` finds.
    pub fn new(command: F) -> Self {
        OnMachine { command, entered: None }
    }
}

impl<F: Fn(&[OsString]) -> Made> Executor for OnMachine<F> {
    fn takes(&self, key: &str) -> bool {
        Topology::takes(key)
    }

    fn parameters(&self, path: &Settings) -> Result<Place, Refusal> {
        Topology::parameters(path)
    }

    fn enter(&mut self, path: &Settings) -> Result<bool, Refusal> {
        Ok(self.entered.replace(path.clone()).as_ref() != Some(path))
    }

    fn leave(&mut self) -> Option<String> {
        None
    }

    fn addresses(&self, _: usize) -> Result<Addresses, Refusal> {
        let loopback = Ipv4Addr::LOCALHOST.to_string();
        Ok(Addresses { rdma: loopback.clone(), tcp: loopback, off_path: None })
    }

    fn host(&self, _: End) -> Option<String> {
        None
    }

    fn launch(&self, _: End, name: String, words: &[String]) -> Result<Launch, Refusal> {
        let command = (self.command)(&os_words(words)).map_err(Refusal::new)?;
        Ok(Launch::here(name, command))
    }
}
