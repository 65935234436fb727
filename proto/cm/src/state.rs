//! The states of a connection, each with the data that exist in that state only.

use crate::ConnectionState;
use crate::queue::Key;
use longhaul_units::Instant;
use longhaul_wire::mad::Mad;

/// State of a connection. Source: IBTA, volume 1, section 12.9.7.
///
/// ```text
///  active                              passive
///  connect ──▶ ReqSent                 REQ ──▶ ReqReceived
///                │ REP                             │ accept
///                ▼                                 ▼
///           RepReceived                         RepSent
///                │ ready_to_use                    │ RTU, first packet
///                └──────────▶ Established ◀────────┘
///                                  │ disconnect, destroy
///      REJ, DREQ, reject           ▼
///      or retries spent:        DreqSent
///      removed, or                 │ DREP, DREQ, REJ, retries spent
///      Timewait with a REJ         ▼
///      to resend                Timewait ──▶ removed
/// ```
///
/// `RepSent` also leads to `DreqSent`: the peer may count the connection as established. An MRA
/// keeps the state and extends its wait ([`Unanswered::is_extended`]). Each transition has one
/// function, in `transitions.rs`; all go through `ConnectionManager::enter`.
#[derive(Debug)]
pub(crate) enum State {
    /// Active: waiting for the REP.
    ReqSent(Unanswered),
    /// Active: the REP arrived at `since`; the program decides.
    RepReceived { since: Instant },
    /// Passive: the REQ arrived at `since`; the program decides. `is_unseen`: its event is still
    /// queued.
    ReqReceived { since: Instant, is_unseen: bool },
    /// Passive: waiting for the RTU.
    RepSent(Unanswered),
    /// Both directions are usable.
    Established,
    /// Waiting for the DREP. `is_orphan`: the program has destroyed the connection.
    DreqSent { dreq: Unanswered, is_orphan: bool },
    /// Ended; ids and QPNs are reserved for a while. A REJ is resent for each duplicate of the
    /// message that it rejects.
    Timewait { rej: Option<Kept>, is_orphan: bool },
}

/// A message that is retransmitted until it is answered.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub message: Kept,
    pub retries: u8,
    pub retries_max: u8,
    /// The peer has extended the wait by an MRA.
    pub is_extended: bool,
}

/// A message that may be retransmitted.
#[derive(Debug)]
pub(crate) struct Kept {
    pub mad: Box<Mad>,
    /// Its entry in the output queue.
    pub queued: Option<Key>,
    /// The timeout starts when the queued message is sent.
    pub rearm: bool,
}

impl Kept {
    pub fn new(mad: Box<Mad>) -> Self {
        Kept { mad, queued: None, rearm: false }
    }
}

impl Unanswered {
    /// A message before its first transmission.
    pub fn new(mad: Box<Mad>, retries_max: u8) -> Self {
        let message = Kept { rearm: true, ..Kept::new(mad) };
        Unanswered { message, retries: 0, retries_max, is_extended: false }
    }

    /// Replaces the message by `mad`, as if for a first transmission.
    pub fn replace(&mut self, mad: Box<Mad>) {
        let message = Kept { mad, rearm: true, queued: self.message.queued };
        *self = Unanswered { message, retries: 0, is_extended: false, ..*self };
    }
}

impl State {
    /// Public name of the state.
    pub fn name(&self) -> ConnectionState {
        match self {
            State::ReqSent(req) if req.is_extended => ConnectionState::ReqAcknowledged,
            State::ReqSent(_) => ConnectionState::ReqSent,
            State::RepReceived { .. } => ConnectionState::RepReceived,
            State::ReqReceived { .. } => ConnectionState::ReqReceived,
            State::RepSent(rep) if rep.is_extended => ConnectionState::RepAcknowledged,
            State::RepSent(_) => ConnectionState::RepSent,
            State::Established => ConnectionState::Established,
            State::DreqSent { .. } => ConnectionState::DreqSent,
            State::Timewait { .. } => ConnectionState::Timewait,
        }
    }

    /// True if passive and not yet established; the half-open bound counts these.
    pub fn is_half_open(&self) -> bool {
        matches!(self, State::ReqReceived { .. } | State::RepSent(_))
    }

    /// True if the program has destroyed the connection, or knows that it failed.
    pub fn is_orphan(&self) -> bool {
        match self {
            State::DreqSent { is_orphan, .. } | State::Timewait { is_orphan, .. } => *is_orphan,
            _ => false,
        }
    }

    pub fn unanswered(&self) -> Option<&Unanswered> {
        match self {
            State::ReqSent(message)
            | State::RepSent(message)
            | State::DreqSent { dreq: message, .. } => Some(message),
            _ => None,
        }
    }

    pub fn unanswered_mut(&mut self) -> Option<&mut Unanswered> {
        match self {
            State::ReqSent(message)
            | State::RepSent(message)
            | State::DreqSent { dreq: message, .. } => Some(message),
            _ => None,
        }
    }

    pub fn kept_mut(&mut self) -> Option<&mut Kept> {
        match self {
            State::Timewait { rej, .. } => rej.as_mut(),
            _ => self.unanswered_mut().map(|unanswered| &mut unanswered.message),
        }
    }

    /// Reason of its deadline.
    pub fn reason(&self) -> &'static str {
        match self {
            State::ReqSent(_) => "CM: answer to REQ",
            State::RepReceived { .. } | State::Established => "CM: nothing",
            State::ReqReceived { .. } => "CM: program's decision over REQ",
            State::RepSent(_) => "CM: RTU",
            State::DreqSent { .. } => "CM: answer to DREQ",
            State::Timewait { .. } => "CM: end of time-wait",
        }
    }
}
