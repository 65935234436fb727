//! A flow's state towards its responder: transmission to it, and its credits.

use super::credits::Credits;
use super::pace::Pace;
use super::retransmission::Retransmission;
use super::window::Window;
use longhaul_units::Instant;

/// State of a flow towards its responder.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) retransmission: Retransmission,
    pub(crate) pace: Pace,
    pub(crate) credits: Credits,
}

impl Responder {
    pub(crate) fn new(now: Instant, window: Window) -> Self {
        Responder {
            retransmission: Retransmission::new(now, window),
            pace: Pace::new(),
            credits: Credits::default(),
        }
    }

    /// The same responder, with nothing in flight to it. Its credits remain valid.
    pub(crate) fn afresh(&self) -> Self {
        Responder {
            retransmission: self.retransmission.afresh(),
            pace: Pace::new(),
            credits: self.credits,
        }
    }
}
