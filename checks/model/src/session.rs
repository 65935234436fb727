//! The WAN transport between two boxes: how a session begins, carries frames in order, and ends
//! when either box restarts.
//!
//! Frames go from box 0 to box 1; either box may ask for a session, or both at once. Datagrams
//! arrive in any order; some are lost, some are duplicated. As in [`crate::pair`], timers fire when
//! nothing is in flight, and every kind of fault is bounded.
//!
//! Mirrors `proto/wan/src/handshake.rs`, `transport.rs`, `session.rs` and its `receive.rs`,
//! `incoming.rs` and `arrivals.rs`. There is one path and one stream, no parity, no congestion and
//! no limit on memory.

mod end;

pub use end::{Datagram, End};

use end::Step;
use stateright::{Model, Property};

/// Most frames: frame sets are bits of a byte.
pub const FRAMES_MAX: u8 = 8;

/// Number of names after which boxes stop asking: only boxes that never agree on a session need as
/// many.
const NAMES_MAX: u8 = 40;

/// Mistakes that a rule can be made to have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slip {
    /// A datagram is accepted with any session name.
    TakesAnySession,
    /// A restarted box has the seed of its previous life: the same instance, sessions and cookies.
    SameSeed,
    /// Frames are delivered in order of arrival.
    HandsOutAtOnce,
    /// Only numbers reveal a duplicate: a frame retransmitted with another number is delivered
    /// again.
    ForgetsSequence,
    /// A number is acknowledged before its frame has arrived.
    AcknowledgesAhead,
    /// Undelivered frames of a previous session keep their sequences in the next one.
    KeepsSequence,
    /// A PING for an unknown session is not answered.
    KeepsSilent,
    /// Opening a session in a box's name ends the existing session with that box.
    TakesOver,
}

/// Amount of traffic, and the faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Frames for box 0 to send, at most [`FRAMES_MAX`].
    pub frames: u8,
    /// Datagrams lost.
    pub losses: u8,
    /// Datagrams duplicated.
    pub duplicates: u8,
    /// Frames retransmitted without a loss.
    pub early_repeats: u8,
    /// Crashes of either box, which restarts at once.
    pub crashes: u8,
    /// Sessions that an attacker requests from box 1 in the name of box 0.
    pub strangers: u8,
    /// Boxes that ask for a session on their own.
    pub askers: Vec<usize>,
    /// Same as `OPEN_TRIES` in `proto/wan/src/handshake.rs`.
    pub open_tries: u8,
    /// The mistake of a rule.
    pub slip: Option<Slip>,
}

impl Scenario {
    /// Three frames, box 0 asks, and no faults.
    pub fn new() -> Self {
        Scenario {
            frames: 3,
            losses: 0,
            duplicates: 0,
            early_repeats: 0,
            crashes: 0,
            strangers: 0,
            askers: vec![0],
            open_tries: 3,
            slip: None,
        }
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario::new()
    }
}

/// A frame that box 0 accepted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Taken {
    /// The session that accepted it, by its name at box 0.
    session: u8,
    /// Its sequence there.
    sequence: u8,
}

/// The complete state at one instant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    ends: [End; 2],
    /// Destination box and datagram, sorted: any of them may arrive next.
    under_way: Vec<(usize, Datagram)>,
    /// Frames that box 0 accepted, in order.
    taken: Vec<Taken>,
    /// Frames that box 1 delivered, in order.
    handed_out: Vec<u8>,
    /// Number of names assigned: instances, sessions and nonces are distinct.
    names: u8,
    crashes: u8,
    strangers: u8,
    losses: u8,
    duplicates: u8,
    early_repeats: u8,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// This datagram in flight arrives.
    Deliver(usize),
    /// It arrives, and a copy stays in flight.
    Duplicate(usize),
    /// It is lost.
    Lose(usize),
    /// A frame is offered to box 0.
    Push,
    /// A box asks for a session.
    Ask(usize),
    /// A box repeats its request to open a session.
    PressOn(usize),
    /// A box asks whether its session is still known.
    Ping(usize),
    /// Box 0 retransmits the frame in this place.
    Repeat(u8),
    /// A box crashes and restarts.
    Crash(usize),
    /// An attacker requests a session from box 1 in the name of box 0.
    Strange,
}

impl State {
    fn new() -> Self {
        State {
            ends: [End::new(1), End::new(2)],
            under_way: Vec::new(),
            taken: Vec::new(),
            handed_out: Vec::new(),
            names: 2,
            crashes: 0,
            strangers: 0,
            losses: 0,
            duplicates: 0,
            early_repeats: 0,
        }
    }

    fn step(&mut self, scenario: &Scenario, at: usize, act: impl FnOnce(&mut End, &mut Step<'_>)) {
        let mut step = Step {
            slip: scenario.slip,
            open_tries: scenario.open_tries,
            names: &mut self.names,
            out: Vec::new(),
            handed_out: &mut self.handed_out,
        };
        act(&mut self.ends[at], &mut step);
        let sent = step.out;
        self.under_way.extend(sent.into_iter().map(|datagram| (1 - at, datagram)));
        self.under_way.sort_unstable();
    }

    /// True if the other box neither knows this box's session nor is opening it, and this box does
    /// not know that.
    fn is_stale(&self, at: usize) -> bool {
        let remote = self.ends[at].remote();
        remote.is_some() && remote != self.ends[1 - at].open() && !self.ends[1 - at].is_opening()
    }

    fn push(&mut self) {
        let frame = self.taken.len() as u8;
        let place = self.ends[0].push(frame);
        self.taken.extend(place.map(|(session, sequence)| Taken { session, sequence }));
    }
}

/// The model for the checker.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// The scenario.
    pub scenario: Scenario,
}

impl Tunnel {
    fn is_over(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        if state.under_way.is_empty() {
            self.actions(state, &mut actions);
            actions.retain(|action| {
                !matches!(action, Action::Crash(_) | Action::Repeat(_) | Action::Strange)
            });
        }
        state.under_way.is_empty() && actions.is_empty() && state.ends[0].waiting() == 0
    }
}

impl Model for Tunnel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let scenario = &self.scenario;
        for index in 0..state.under_way.len() {
            // Of two equal datagrams one suffices.
            if index > 0 && state.under_way[index] == state.under_way[index - 1] {
                continue;
            }
            actions.push(Action::Deliver(index));
            actions.extend(
                (state.duplicates < scenario.duplicates).then_some(Action::Duplicate(index)),
            );
            actions.extend((state.losses < scenario.losses).then_some(Action::Lose(index)));
        }
        if state.taken.len() < usize::from(scenario.frames) && state.ends[0].remote().is_some() {
            actions.push(Action::Push);
        }
        if state.crashes < scenario.crashes {
            actions.extend([Action::Crash(0), Action::Crash(1)]);
        }
        actions.extend((state.strangers < scenario.strangers).then_some(Action::Strange));
        let is_quiet = state.under_way.is_empty();
        let asking = |at: &usize| state.names < NAMES_MAX && state.ends[*at].may_ask(is_quiet);
        actions.extend(scenario.askers.iter().copied().filter(asking).map(Action::Ask));
        if is_quiet {
            actions.extend(
                [0, 1].into_iter().filter(|at| state.ends[*at].is_opening()).map(Action::PressOn),
            );
            actions.extend([0, 1].into_iter().filter(|at| state.is_stale(*at)).map(Action::Ping));
        }
        let [near, far] = &state.ends;
        let is_heard = near.remote() == far.open() && far.remote() == near.open();
        if (is_quiet && is_heard) || state.early_repeats < scenario.early_repeats {
            actions.extend(
                (0..FRAMES_MAX)
                    .filter(|place| state.ends[0].may_repeat(*place))
                    .map(Action::Repeat),
            );
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let scenario = &self.scenario;
        let mut state = last.clone();
        match action {
            Action::Deliver(index) => {
                let (to, datagram) = state.under_way.remove(index);
                state.step(scenario, to, |end, step| end.handle(datagram, step));
            }
            Action::Duplicate(index) => {
                state.duplicates += 1;
                let (to, datagram) = state.under_way[index];
                state.step(scenario, to, |end, step| end.handle(datagram, step));
            }
            Action::Lose(index) => {
                state.losses += 1;
                state.under_way.remove(index);
            }
            Action::Push => {
                state.push();
                state.step(scenario, 0, End::send_fresh);
            }
            Action::Ask(at) => state.step(scenario, at, End::ask),
            Action::PressOn(at) => state.step(scenario, at, End::press_on),
            Action::Ping(at) => state.step(scenario, at, End::ping),
            Action::Repeat(place) => {
                state.early_repeats += u8::from(!state.under_way.is_empty());
                state.step(scenario, 0, |end, step| end.repeat(place, step));
            }
            Action::Crash(at) => {
                state.crashes += 1;
                state.step(scenario, at, End::restart);
            }
            Action::Strange => {
                state.strangers += 1;
                state.step(scenario, 1, End::handle_stranger);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("each frame is handed out once, in order", in_order),
            Property::always("a session hands out from its first frame on, without a gap", no_gap),
            Property::always(
                "what is acknowledged in a session has been taken by the far box",
                acknowledged,
            ),
            Property::always(
                "while both boxes live, everything is handed out in the end",
                everything,
            ),
            Property::always("two boxes have one session in the end", agreed),
        ]
    }
}

fn in_order(_: &Tunnel, state: &State) -> bool {
    state.handed_out.is_sorted_by(|a, b| a < b)
}

fn no_gap(_: &Tunnel, state: &State) -> bool {
    let taken = |frame: &u8| state.taken[usize::from(*frame)];
    let places: Vec<_> = state.handed_out.iter().map(taken).collect();
    let goes_on = |pair: &[Taken]| {
        let is_next =
            pair[1].session == pair[0].session && pair[1].sequence == pair[0].sequence + 1;
        is_next || (pair[1].session != pair[0].session && pair[1].sequence == 0)
    };
    places.first().is_none_or(|first| first.sequence == 0) && places.windows(2).all(goes_on)
}

/// Applies to the session that both boxes have: frames in flight at the end of a session are lost
/// (docs/spec/wan-transport.md).
fn acknowledged(_: &Tunnel, state: &State) -> bool {
    let [near, far] = &state.ends;
    let has_arrived = |frame: u8| state.handed_out.contains(&frame) || far.holds(frame);
    let is_of_session =
        |taken: &Taken| near.open() == Some(taken.session) && far.remote() == near.open();
    let mut taken = (0..).zip(&state.taken).filter(|(_, taken)| is_of_session(taken));
    taken.all(|(frame, _)| near.owes(frame) || has_arrived(frame))
}

/// Undelivered frames of ended sessions are lost; those of the last session are not.
fn everything(tunnel: &Tunnel, state: &State) -> bool {
    let all = usize::from(tunnel.scenario.frames);
    let is_missing = |(frame, taken): (u8, &Taken)| {
        state.ends[0].open() == Some(taken.session) && !state.handed_out.contains(&frame)
    };
    let has_all = state.crashes > 0 || state.handed_out.len() == all;
    !tunnel.is_over(state) || (has_all && !(0..).zip(&state.taken).any(is_missing))
}

fn agreed(tunnel: &Tunnel, state: &State) -> bool {
    let [a, b] = &state.ends;
    let is_one = a.open().is_some() && a.remote() == b.open() && b.remote() == a.open();
    !tunnel.is_over(state) || is_one
}
