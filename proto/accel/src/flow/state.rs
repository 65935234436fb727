//! The states of a flow, each with the data that exist in it alone.

use super::learning::Learning;
use super::mode::FlowMode;
use crate::policy::Duty;
use crate::{FlowState, PassReason};
use longhaul_units::Instant;
use longhaul_wire::NakCode;

/// What a box does with the requests of a flow.
///
/// A flow is followed, as `followed` or in [`State::Learning`], while its requester is not certain.
/// Except in [`State::Terminated`] its requester and its responder are owed nothing but what a
/// variant names: both sides begin afresh whenever that state ends.
#[derive(Debug)]
pub(crate) enum State {
    /// Forwards and remembers them.
    Learning(Box<Learning>),
    /// Stores and acknowledges them.
    Terminated,
    /// Forwards them unacknowledged.
    Passing(Passing),
    /// Refuses them: something that was acknowledged cannot be delivered.
    Failed(Failed),
}

/// A flow that passes.
#[derive(Debug)]
pub(crate) struct Passing {
    pub(crate) reason: PassReason,
    pub(crate) remains: Remains,
    /// Times that what is left in the store was sent again.
    pub(crate) resends: u8,
    followed: Option<Box<Learning>>,
}

/// What a flow that passes had acknowledged before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remains {
    /// Nothing, or nothing that is still this box's affair.
    None,
    /// Something that is not known to be delivered.
    Owed,
    /// Nothing from this PSN on, and everything before it is delivered.
    DeliveredTo(u64),
}

/// A flow that has failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) since: Instant,
    /// The code of the NAK by which its requester learns so.
    pub(crate) code: NakCode,
    /// The requester is owed a fatal NAK.
    pub(crate) nak_is_owed: bool,
    followed: Option<Box<Learning>>,
}

impl State {
    /// Of a flow in which no packet was stored. `learning`: its requester is not certain.
    pub(crate) fn new(
        mode: &FlowMode,
        has_alternate: bool,
        learning: Option<Box<Learning>>,
    ) -> Self {
        match (mode.duty(), learning) {
            (Duty::Pass, followed) => State::passing(PassReason::Mode, followed),
            (_, followed) if has_alternate => State::passing(PassReason::AlternatePath, followed),
            (_, Some(learning)) => State::Learning(learning),
            (_, None) => State::Terminated,
        }
    }

    fn passing(reason: PassReason, followed: Option<Box<Learning>>) -> Self {
        State::Passing(Passing { reason, remains: Remains::None, resends: 0, followed })
    }

    /// Its name.
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

    /// Takes what is known of an uncertain requester out, for the next state.
    fn take_learning(&mut self) -> Option<Box<Learning>> {
        std::mem::replace(self, State::Terminated).into_learning()
    }

    /// The flow's mode has become final, or another.
    pub(crate) fn settle(&mut self, mode: &FlowMode, has_alternate: bool) {
        *self = State::new(mode, has_alternate, self.take_learning());
    }

    /// The flow passes from here on.
    pub(crate) fn pass(&mut self, reason: PassReason, remains: Remains) {
        *self =
            State::Passing(Passing { reason, remains, resends: 0, followed: self.take_learning() });
    }

    /// The requester of a flow that has failed has to learn so once more.
    pub(crate) fn owe_fatal_nak(&mut self) {
        if let State::Failed(failed) = self {
            failed.nak_is_owed = true;
        }
    }

    /// The flow has failed. `nak_is_owed`: its requester does not know yet.
    pub(crate) fn fail(&mut self, now: Instant, code: NakCode, nak_is_owed: bool) {
        let followed = self.take_learning();
        *self = State::Failed(Failed { since: now, code, nak_is_owed, followed });
    }
}
