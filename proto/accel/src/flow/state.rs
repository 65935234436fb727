//! The states of a flow, each with the data that exist in that state only.

use super::learning::Learning;
use super::mode::FlowMode;
use crate::policy::Duty;
use crate::{FlowState, PassReason};
use longhaul_units::Instant;
use longhaul_wire::NakCode;

/// How a box treats the requests of a flow.
///
/// While its requester is not certain, a flow is followed, in [`State::Learning`] or as `followed`.
/// Except in [`State::Terminated`], its requester and its responder are owed only what a variant
/// names: both sides are cleared when that state ends.
#[derive(Debug)]
pub(crate) enum State {
    /// Forwards and remembers them.
    Learning(Box<Learning>),
    /// Stores and acknowledges them.
    Terminated,
    /// Forwards them unacknowledged.
    Passing(Passing),
    /// Refuses them: an acknowledged packet cannot be delivered.
    Failed(Failed),
}

/// State of a passing flow.
#[derive(Debug)]
pub(crate) struct Passing {
    pub(crate) reason: PassReason,
    pub(crate) remains: Remains,
    /// Times that the remains were retransmitted.
    pub(crate) resends: u8,
    followed: Option<Box<Learning>>,
}

/// Packets of a passing flow that were acknowledged before it passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remains {
    /// None, or none that this box must deliver.
    None,
    /// Some are not known to be delivered.
    Owed,
    /// None from this PSN on; all before it are delivered.
    DeliveredTo(u64),
}

/// State of a failed flow.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) since: Instant,
    /// Code of the fatal NAK to its requester.
    pub(crate) code: NakCode,
    /// The requester is owed a fatal NAK.
    pub(crate) nak_is_owed: bool,
    followed: Option<Box<Learning>>,
}

impl State {
    /// For a flow without stored packets. `for_good`: why it passes whatever the mode; `learning`:
    /// its requester is not certain.
    pub(crate) fn new(
        mode: &FlowMode,
        for_good: Option<PassReason>,
        learning: Option<Box<Learning>>,
    ) -> Self {
        match (mode.duty(), for_good, learning) {
            (Duty::Pass, _, followed) => State::passing(PassReason::Mode, followed),
            (_, Some(reason), followed) => State::passing(reason, followed),
            (_, None, Some(learning)) => State::Learning(learning),
            (_, None, None) => State::Terminated,
        }
    }

    fn passing(reason: PassReason, followed: Option<Box<Learning>>) -> Self {
        State::Passing(Passing { reason, remains: Remains::None, resends: 0, followed })
    }

    pub(crate) fn name(&self) -> FlowState {
        match self {
            State::Learning(_) => FlowState::Learning,
            State::Terminated => FlowState::Terminated,
            State::Passing(_) => FlowState::Passing,
            State::Failed(_) => FlowState::Failed,
        }
    }

    pub(crate) fn learning(&self) -> Option<&Learning> {
        match self {
            State::Learning(learning) => Some(learning),
            State::Passing(Passing { followed, .. }) | State::Failed(Failed { followed, .. }) => {
                followed.as_deref()
            }
            State::Terminated => None,
        }
    }

    pub(crate) fn learning_mut(&mut self) -> Option<&mut Learning> {
        match self {
            State::Learning(learning) => Some(learning),
            State::Passing(Passing { followed, .. }) | State::Failed(Failed { followed, .. }) => {
                followed.as_deref_mut()
            }
            State::Terminated => None,
        }
    }

    fn into_learning(self) -> Option<Box<Learning>> {
        match self {
            State::Learning(learning) => Some(learning),
            State::Passing(Passing { followed, .. }) | State::Failed(Failed { followed, .. }) => {
                followed
            }
            State::Terminated => None,
        }
    }

    /// Removes the learning state, for the next state.
    fn take_learning(&mut self) -> Option<Box<Learning>> {
        std::mem::replace(self, State::Terminated).into_learning()
    }

    /// Enters the state for `mode`, which has become final or has changed.
    pub(crate) fn settle(&mut self, mode: &FlowMode, for_good: Option<PassReason>) {
        *self = State::new(mode, for_good, self.take_learning());
    }

    /// Passes the flow from here on.
    pub(crate) fn pass(&mut self, reason: PassReason, remains: Remains) {
        *self =
            State::Passing(Passing { reason, remains, resends: 0, followed: self.take_learning() });
    }

    /// Owes the requester of a failed flow another fatal NAK.
    pub(crate) fn owe_fatal_nak(&mut self) {
        if let State::Failed(failed) = self {
            failed.nak_is_owed = true;
        }
    }

    /// Fails the flow. `nak_is_owed`: its requester does not know yet.
    pub(crate) fn fail(&mut self, now: Instant, code: NakCode, nak_is_owed: bool) {
        let followed = self.take_learning();
        *self = State::Failed(Failed { since: now, code, nak_is_owed, followed });
    }
}
