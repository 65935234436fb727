//! Signals that end a program in order.

use crate::problem::Problem;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that Ctrl-C and SIGTERM set; the second one ends the process.
pub fn stop_flag() -> Result<Arc<AtomicBool>, Problem> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Problem::plain(format!("cannot handle signals: {error}")))?;
    }
    Ok(stop)
}
