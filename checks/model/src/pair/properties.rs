//! The statements of docs/semantics.md, as properties of every state.

use super::{Away, Mode, Pair, Role, State, Victim};
use stateright::{Model, Property};

/// All properties.
pub(super) fn all() -> Vec<Property<Pair>> {
    vec![
        Property::always(
            "the responder gets each packet once, in order, nothing behind a gap",
            in_order,
        ),
        Property::always("what is acknowledged is delivered or held by a box that lives", held),
        Property::always("in tail and off a completion says that the responder has it", delivered),
        Property::always("every run ends with completions or an error", ends),
        Property::always("no box owes a delivery in the end", nothing_owed),
        Property::always("who has lost a completed message is told", told),
        Property::always("nothing fails that could be sent again", goes_on),
    ]
}

impl Pair {
    fn has_crashed(&self, state: &State, victim: Victim) -> bool {
        let number = self.scenario.victims.iter().position(|v| *v == victim);
        number.is_some_and(|number| state.crashed & 1 << number != 0)
    }

    fn has_box_crashed(&self, state: &State) -> [bool; 2] {
        [Role::Near, Role::Far].map(|role| self.has_crashed(state, Victim::Box(role)))
    }

    fn has_responder_gone(&self, state: &State) -> bool {
        [Victim::Responder, Victim::Refusal].iter().any(|victim| self.has_crashed(state, *victim))
    }

    /// The table "failure by failure": whether completed messages may be missing at the responder.
    fn may_lose(&self, state: &State) -> bool {
        let [near, far] = self.has_box_crashed(state);
        // A box that never returns is a broken path.
        let responder = self.has_responder_gone(state);
        match self.scenario.mode {
            Mode::Early => near || far || responder,
            Mode::Far => far || responder,
            Mode::Tail | Mode::Off => false,
        }
    }

    /// True if no event is left.
    fn is_over(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        if state.is_quiet() {
            self.actions(state, &mut actions);
            actions.retain(|action| !matches!(action, super::Action::Crash(_)));
        }
        state.is_quiet() && actions.is_empty()
    }
}

fn in_order(_: &Pair, state: &State) -> bool {
    !state.responder.skipped && state.responder.executed.iter().all(|times| *times <= 1)
}

/// In `early` and `far` an acknowledged packet is safe. In `tail` a packet of an unfinished message
/// is lost with its box.
fn held(pair: &Pair, state: &State) -> bool {
    let is_excused = match pair.scenario.mode {
        Mode::Tail => pair.has_box_crashed(state).contains(&true) || pair.has_responder_gone(state),
        _ => pair.may_lose(state),
    };
    is_excused
        || (state.responder.expected..state.requester.una)
            .all(|seq| state.boxes.iter().any(|station| station.holds(seq)))
}

fn delivered(pair: &Pair, state: &State) -> bool {
    let scenario = &pair.scenario;
    let has_promised = matches!(scenario.mode, Mode::Tail | Mode::Off);
    let completed = scenario.messages_below(state.requester.una);
    !has_promised || completed <= scenario.messages_below(state.responder.expected)
}

fn ends(pair: &Pair, state: &State) -> bool {
    let has_ended = state.requester.una == pair.scenario.packets() || state.requester.is_over();
    has_ended || !pair.is_over(state)
}

fn nothing_owed(pair: &Pair, state: &State) -> bool {
    !state.boxes.iter().any(super::Station::owes_delivery) || !pair.is_over(state)
}

/// If a completed message was lost, an error follows, provided that more was posted.
fn told(pair: &Pair, state: &State) -> bool {
    let scenario = &pair.scenario;
    let completed = scenario.messages_below(state.requester.una);
    let has_lost = completed > scenario.messages_below(state.responder.expected);
    !has_lost
        || !pair.is_over(state)
        || (pair.may_lose(state) && (state.requester.failed || state.requester.dead))
}

fn goes_on(pair: &Pair, state: &State) -> bool {
    let [near, far] = pair.has_box_crashed(state);
    let is_lasting = (near || far) && pair.scenario.away != Away::AtOnce;
    let keeps_nothing = match pair.scenario.mode {
        Mode::Off => true,
        Mode::Far => !far,
        Mode::Early | Mode::Tail => !near && !far,
    };
    let is_bound_to =
        keeps_nothing && !is_lasting && !pair.has_responder_gone(state) && !state.requester.dead;
    !is_bound_to || !state.requester.failed
}
