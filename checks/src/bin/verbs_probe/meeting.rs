//! Rendezvous of the two processes; each scenario has its own connection.

use crate::Fault;
use longhaul_checks::rendezvous::Rendezvous;
use std::net::TcpListener;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Location of the other process.
pub enum Meeting {
    /// It connects to this listener.
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
