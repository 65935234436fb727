//! How the two processes find each other; each scenario has a connection of its own.

use crate::Fault;
use longhaul_checks::rendezvous::Rendezvous;
use std::net::TcpListener;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(40);

/// Where the other process is.
pub enum Meeting {
    /// It comes here.
    Listening(TcpListener),
    /// It listens at this address and port.
    At(String),
}

impl Meeting {
    /// Waits for the other process.
    pub fn meet(&self) -> Result<Rendezvous, Fault> {
        match self {
            Meeting::Listening(listener) => Rendezvous::over(listener.accept()?.0, PATIENCE),
            Meeting::At(address) => Rendezvous::at(address, PATIENCE),
        }
    }
}
