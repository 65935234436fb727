//! Both programs on this machine.

use super::{Addresses, Executor, Made, Refusal, Side, os_words};
use crate::grid::Settings;
use longhaul_bench::Point as Place;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

/// Runs programs on this machine, over whatever network and devices it has.
pub struct OnMachine<F> {
    command: F,
    is_entered: bool,
}

impl<F: Fn(&[OsString]) -> Made> OnMachine<F> {
    /// An executor whose programs `command` finds.
    pub fn new(command: F) -> Self {
        OnMachine { command, is_entered: false }
    }
}

impl<F: Fn(&[OsString]) -> Made> Executor for OnMachine<F> {
    fn takes(&self, _: &str) -> bool {
        false
    }

    fn parameters(&self, _: &Settings) -> Result<Place, Refusal> {
        Ok(Place::new())
    }

    fn enter(&mut self, _: &Settings) -> Result<bool, Refusal> {
        Ok(!std::mem::replace(&mut self.is_entered, true))
    }

    fn leave(&mut self) -> Option<String> {
        None
    }

    fn addresses(&self) -> Result<Addresses, Refusal> {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Ok(Addresses { rdma: loopback, tcp: loopback, off_path: None })
    }

    fn command(&self, _: Side, words: &[String]) -> Result<Command, Refusal> {
        (self.command)(&os_words(words)).map_err(Refusal::new)
    }
}
