//! A flow towards its responder: how packets are sent to it, and what it has promised.

use super::credits::Credits;
use super::pace::Pace;
use super::retransmission::Retransmission;
use super::window::Window;
use longhaul_units::Instant;

/// The side of a flow towards its responder.
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

    /// The same responder, to which nothing is being sent. Its credits hold on.
    pub(crate) fn afresh(&self) -> Self {
        Responder {
            retransmission: self.retransmission.afresh(),
            pace: Pace::new(),
            credits: self.credits,
        }
    }
}
