//! A box's answers to probes and scrapers.

use crate::error::Error;
use crate::operation::Operated;
use crate::{journal, prometheus};
use longhaul_health::{Address, Probed};
use std::net::TcpListener;
use std::sync::Arc;

struct Probe(Arc<dyn Operated>);

impl Probed for Probe {
    fn metrics(&self) -> Option<String> {
        self.0.status().map(|state| prometheus::exposition([&state]))
    }

    fn state(&self) -> Option<serde_json::Result<String>> {
        self.0.status().map(|state| serde_json::to_string_pretty(&state))
    }

    fn not_ready(&self) -> Vec<String> {
        self.0.not_ready()
    }

    fn notes(&self) -> Vec<String> {
        self.0.notes()
    }

    fn stuck(&self) -> Vec<String> {
        self.0.stuck()
    }
}

/// Listens. Called while the box may still bind privileged ports.
///
/// # Errors
/// If the address cannot be bound.
pub fn listen(address: Address) -> Result<TcpListener, Error> {
    longhaul_health::listen(address).map_err(|error| Error::Health { address, error })
}

/// Starts to answer.
///
/// # Errors
/// If the threads cannot be started.
pub fn serve(listener: &TcpListener, of: &Arc<dyn Operated>) -> Result<(), Error> {
    let address = listener.local_addr().map_err(Error::Http)?;
    journal::line(&format!("serving http://{address}/healthz"));
    let probe: Arc<dyn Probed> = Arc::new(Probe(Arc::clone(of)));
    longhaul_health::serve(listener, &probe).map_err(Error::Http)
}
