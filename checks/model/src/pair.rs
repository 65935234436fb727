//! Requester, near box, far box and responder, with the lines between them.
//!
//! A step delivers one frame, fires one timer, or causes one fault. Each node that it affects then
//! sends everything that it can, as the driver of a `Node` does. Timers fire when no other event is
//! left; a bounded number fires early. Every kind of fault is bounded, so that every run ends.

mod flow;
mod hosts;
mod line;
mod properties;

pub use flow::{Flow, FlowState};
pub use hosts::{Requester, Responder};
pub use line::{Frame, Line};

use flow::{Out, Rules};
use stateright::{Model, Property};

/// An unwrapped PSN, counted from 0.
pub type Seq = u8;

/// Most packets of a scenario.
pub const PACKETS_MAX: usize = 8;

/// Same as `longhaul_accel::Mode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Each box acknowledges the packets that it stores.
    Early,
    /// Only the far box acknowledges.
    Far,
    /// Both acknowledge all but the last packet of each message.
    Tail,
    /// Neither acknowledges.
    Off,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [Mode::Early, Mode::Far, Mode::Tail, Mode::Off];

    /// Mirrors `Mode::duty`.
    fn duty(self, role: Role, slip: Option<Slip>) -> Duty {
        match (self, role) {
            (Mode::Far, Role::Near) if slip == Some(Slip::AcknowledgesInFar) => Duty::Acknowledge,
            (Mode::Early, _) | (Mode::Far, Role::Far) => Duty::Acknowledge,
            (Mode::Tail, _) => Duty::AcknowledgeButLast,
            (Mode::Far, Role::Near) | (Mode::Off, _) => Duty::Pass,
        }
    }
}

/// Mirrors `Duty` in `proto/accel/src/policy.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Duty {
    Acknowledge,
    AcknowledgeButLast,
    Pass,
}

/// Same as `longhaul_accel::Role`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// At the requester's site.
    Near,
    /// At the responder's site.
    Far,
}

/// What the WAN does to frames in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wan {
    /// A path, which loses, duplicates and reorders.
    Path,
    /// A session of the transport, with the properties that [`crate::session`] establishes: in
    /// order, without loss while both boxes are up. A crash of a box loses the frames in flight;
    /// the WAN is then a path until the next session.
    Transport,
}

/// A node that can crash, or otherwise fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Victim {
    /// A box loses its memory, and returns after [`Scenario::away`].
    Box(Role),
    /// The requester's host dies.
    Requester,
    /// The responder's host dies.
    Responder,
    /// The responder refuses the request that it expects.
    Refusal,
}

/// How long a crashed box is down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Away {
    /// It returns before any other event.
    AtOnce,
    /// It returns at any time, at the latest after all other events.
    AWhile,
    /// It never returns.
    Forever,
}

/// Mistakes that a rule can be made to have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slip {
    /// A packet behind a gap is acknowledged, although the packets before it are not stored.
    AcknowledgesUnstored,
    /// In mode tail, the last packet of a message is acknowledged too.
    AcknowledgesLast,
    /// In mode far, the near box acknowledges too.
    AcknowledgesInFar,
    /// A sequence NAK is sent for a missing packet, although a packet before it awaits the
    /// responder.
    NaksAtEnd,
    /// A sequence NAK of the responder releases the packet that it asks for.
    TakesNakForAck,
    /// A packet is released once it is sent.
    ForgetsSent,
    /// A failing flow sends its NAK for the packet behind all stored ones.
    FailsAtEnd,
    /// A box without memory takes the first packet that it sees for the first of the flow.
    TrustsTraffic,
    /// A silent responder is probed forever.
    NeverGivesUp,
    /// A flow that passes for lack of answers discards its remains.
    ForgetsRemains,
}

/// The messages of a run, and its faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The mode of the flow in both boxes.
    pub mode: Mode,
    /// The WAN between the boxes.
    pub wan: Wan,
    /// Messages, by their number of packets; 0 stands for a READ of one packet. Each batch is
    /// posted when no event is left after the previous one; from the second batch on there are no
    /// faults.
    pub batches: Vec<Vec<u8>>,
    /// Most packets that the requester has outstanding.
    pub window: u8,
    /// The requester's retries without progress.
    pub retries: u8,
    /// Consecutive timeouts after which a box gives up.
    pub give_up: u8,
    /// Packets that a box can store.
    pub store: u8,
    /// Same as `TIMES_GONE_BACK` in `proto/accel/src/flow/learning.rs`.
    pub times_gone_back: u8,
    /// Frames on a LAN's line before a sender must wait.
    pub lan_frames: usize,
    /// Frames on the WAN before a sender must wait.
    pub wan_frames: usize,
    /// Frames lost, anywhere except in a session of the transport.
    pub losses: u8,
    /// Frames duplicated by the WAN.
    pub duplicates: u8,
    /// Frames reordered on the WAN.
    pub overtakings: u8,
    /// Timers that fire while frames are in flight.
    pub early_timers: u8,
    /// Total number of crashes.
    pub crashes: u8,
    /// Nodes that may crash.
    pub victims: Vec<Victim>,
    /// How long a crashed box is down.
    pub away: Away,
    /// The mistake of a rule.
    pub slip: Option<Slip>,
}

impl Scenario {
    /// A message of two packets and one of one, then two of one; no faults.
    pub fn new(mode: Mode, wan: Wan) -> Self {
        Scenario {
            mode,
            wan,
            batches: vec![vec![2, 1], vec![1], vec![1]],
            window: 3,
            retries: 4,
            give_up: 3,
            store: PACKETS_MAX as u8,
            times_gone_back: 2,
            lan_frames: 2,
            wan_frames: 3,
            losses: 0,
            duplicates: 0,
            overtakings: 0,
            early_timers: 0,
            crashes: 0,
            victims: Vec::new(),
            away: Away::AtOnce,
            slip: None,
        }
    }

    fn messages(&self) -> impl Iterator<Item = u8> + '_ {
        self.batches.iter().flatten().copied()
    }

    /// The PSN behind the last packet of batch `number`.
    fn batch_end(&self, number: usize) -> Seq {
        self.batches.iter().take(number + 1).flatten().map(|packets| (*packets).max(1)).sum()
    }

    /// Number of packets.
    fn packets(&self) -> Seq {
        self.batch_end(self.batches.len())
    }

    /// The PSN behind the last packet of each message, and whether it is a READ.
    fn ends(&self) -> impl Iterator<Item = (Seq, bool)> + '_ {
        self.messages().scan(0, |end, packets| {
            *end += packets.max(1);
            Some((*end, packets == 0))
        })
    }

    fn is_read(&self, seq: Seq) -> bool {
        self.ends().any(|(end, is_read)| is_read && end == seq + 1)
    }

    fn ends_message(&self, seq: Seq) -> bool {
        self.ends().any(|(end, _)| end == seq + 1)
    }

    /// Number of messages that lie entirely below `seq`.
    fn messages_below(&self, seq: Seq) -> u8 {
        self.ends().filter(|(end, _)| *end <= seq).count() as u8
    }
}

/// A box, with its flow if it knows one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Station {
    /// `None` from a crash until the next request.
    pub flow: Option<Flow>,
    /// False while it is down.
    pub is_up: bool,
}

impl Station {
    /// True if a flow in this box stores this packet, and will deliver it.
    pub fn holds(&self, seq: Seq) -> bool {
        self.is_up && self.flow.is_some_and(|flow| flow.holds(seq))
    }

    /// True if it has a packet to deliver.
    pub fn owes_delivery(&self) -> bool {
        self.is_up && self.flow.is_some_and(|flow| flow.owes_delivery())
    }
}

/// Lines, by sender and receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Route {
    /// Requester to near box.
    RequesterNear,
    /// Near box to far box.
    NearFar,
    /// Far box to responder.
    FarResponder,
    /// Responder to far box.
    ResponderFar,
    /// Far box to near box.
    FarNear,
    /// Near box to requester.
    NearRequester,
}

impl Route {
    const ALL: [Route; 6] = [
        Route::RequesterNear,
        Route::NearFar,
        Route::FarResponder,
        Route::ResponderFar,
        Route::FarNear,
        Route::NearRequester,
    ];

    fn is_wan(self) -> bool {
        matches!(self, Route::NearFar | Route::FarNear)
    }
}

/// The complete state at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The requester.
    pub requester: Requester,
    /// The near and the far box.
    pub boxes: [Station; 2],
    /// The responder.
    pub responder: Responder,
    lines: [Line; 6],
    /// The transport has a session.
    session: bool,
    losses: u8,
    duplicates: u8,
    overtakings: u8,
    early_timers: u8,
    crashes: u8,
    /// Victims that have crashed, one bit per entry of [`Scenario::victims`].
    crashed: u8,
    batch: u8,
}

/// A timer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Timer {
    /// The requester's local ACK timer.
    Requester,
    /// A box's retransmission timer.
    Retransmission(Role),
    /// A box's timer to request a READ's responses again.
    Recovery(Role),
    /// A box's limit on the wait for the responses of a repeated READ.
    Replay(Role),
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The first frame of a line arrives.
    Deliver(Route),
    /// The second frame arrives before the first.
    Overtake(Route),
    /// The first frame arrives, and a copy stays in flight.
    Duplicate(Route),
    /// The first frame is lost.
    Lose(Route),
    /// A timer fires.
    Fire(Timer),
    /// One of [`Scenario::victims`] crashes.
    Crash(usize),
    /// A box returns.
    Return(Role),
    /// The transport establishes a session.
    Begin,
    /// The requester posts its next batch.
    Post,
}

impl State {
    fn new(scenario: &Scenario) -> Self {
        let station = |role| {
            let duty = scenario.mode.duty(role, scenario.slip);
            Station { flow: Some(Flow::known(duty)), is_up: true }
        };
        let mut state = State {
            requester: Requester::new(scenario),
            boxes: [station(Role::Near), station(Role::Far)],
            responder: Responder::new(),
            lines: [Line::default(); 6],
            session: scenario.wan == Wan::Transport,
            losses: scenario.losses,
            duplicates: scenario.duplicates,
            overtakings: scenario.overtakings,
            early_timers: scenario.early_timers,
            crashes: scenario.crashes,
            crashed: 0,
            batch: 0,
        };
        state.drain(scenario);
        state
    }

    fn line(&self, route: Route) -> &Line {
        &self.lines[route as usize]
    }

    /// The rules of `role`, its flow and its lines. `None` while it is down.
    fn at<'a>(
        &'a mut self,
        scenario: &'a Scenario,
        role: Role,
    ) -> Option<(Rules<'a>, &'a mut Station, Out<'a>)> {
        let duty = scenario.mode.duty(role, scenario.slip);
        let rules = Rules { scenario, role, duty, slip: scenario.slip };
        let [_, near_far, far_responder, _, far_near, near_requester] = &mut self.lines;
        let [near, far] = &mut self.boxes;
        let (station, lan, wan, lan_frames, wan_frames) = match role {
            Role::Near => {
                (near, near_requester, near_far, scenario.lan_frames, scenario.wan_frames)
            }
            Role::Far => (far, far_near, far_responder, scenario.wan_frames, scenario.lan_frames),
        };
        station.is_up.then_some((rules, station, Out { lan, wan, lan_frames, wan_frames }))
    }

    /// Lets every node send all that it can, within the room of its lines.
    fn drain(&mut self, scenario: &Scenario) {
        self.requester.transmit(scenario, &mut self.lines[Route::RequesterNear as usize]);
        self.responder.transmit(scenario, &mut self.lines[Route::ResponderFar as usize]);
        for role in [Role::Near, Role::Far] {
            if let Some((rules, station, mut out)) = self.at(scenario, role)
                && let Some(flow) = &mut station.flow
            {
                flow.transmit(rules, &mut out);
            }
        }
    }

    fn arrive(&mut self, scenario: &Scenario, route: Route, frame: Frame) {
        let role = match route {
            Route::RequesterNear | Route::FarNear => Role::Near,
            Route::NearFar | Route::ResponderFar => Role::Far,
            Route::FarResponder => return self.responder.handle(scenario, frame),
            Route::NearRequester => return self.requester.handle(scenario, frame),
        };
        let Some((rules, station, mut out)) = self.at(scenario, role) else { return };
        match (&mut station.flow, frame) {
            (Some(flow), _) => flow.handle(rules, frame, &mut out),
            // Mirrors `Accelerator::watch_new_flow`.
            (none, Frame::Request(seq)) => {
                none.insert(Flow::unknown(rules.duty, seq)).handle(rules, frame, &mut out);
            }
            (None, response) => out.lan.push(response),
        }
    }

    fn fire(&mut self, scenario: &Scenario, timer: Timer) {
        let role = match timer {
            Timer::Requester => return self.requester.handle_timeout(),
            Timer::Retransmission(role) | Timer::Recovery(role) | Timer::Replay(role) => role,
        };
        let Some((rules, station, mut out)) = self.at(scenario, role) else { return };
        let Some(flow) = &mut station.flow else { return };
        match timer {
            Timer::Retransmission(_) => flow.handle_timeout(rules, &mut out),
            Timer::Recovery(_) => flow.resend_front_request(rules, out.wan),
            _ => flow.forget_replay(),
        }
    }

    fn crash(&mut self, scenario: &Scenario, victim: Victim) {
        match victim {
            Victim::Box(role) => {
                let is_up = scenario.away == Away::AtOnce;
                self.boxes[role as usize] = Station { flow: None, is_up };
                if self.session {
                    self.session = false;
                    self.lines[Route::NearFar as usize].clear();
                    self.lines[Route::FarNear as usize].clear();
                }
            }
            Victim::Requester => self.requester.dead = true,
            Victim::Responder => self.responder.die(),
            Victim::Refusal => self.responder.refuse(),
        }
    }

    /// Running timers. While a box is about to retransmit, the requester retries once only: its
    /// patience outlasts the box.
    fn timers(&self, scenario: &Scenario) -> impl Iterator<Item = Timer> + '_ {
        let waits = self.requester.has_tried_again(scenario) && self.box_timers().next().is_some();
        let runs = self.requester.timer_runs() && !waits;
        runs.then_some(Timer::Requester).into_iter().chain(self.box_timers())
    }

    /// Neither of two retransmission timers fires more than once without progress before the other
    /// does, because each backs off.
    fn box_timers(&self) -> impl Iterator<Item = Timer> + '_ {
        let flows =
            self.boxes.iter().filter(|station| station.is_up).filter_map(|station| station.flow);
        let least = flows.filter(Flow::timer_runs).map(|flow| flow.backoff()).min();
        let of_box = move |role: Role| {
            let station = &self.boxes[role as usize];
            let flow = station.flow.filter(|_| station.is_up);
            let runs = move |is: fn(&Flow) -> bool, timer| flow.filter(is).map(|_| timer);
            [
                flow.filter(|flow| {
                    flow.timer_runs() && least.is_some_and(|least| flow.backoff() <= least + 1)
                })
                .map(|_| Timer::Retransmission(role)),
                runs(Flow::is_to_recover, Timer::Recovery(role)),
                runs(Flow::awaits_replay, Timer::Replay(role)),
            ]
        };
        [Role::Near, Role::Far].into_iter().flat_map(of_box).flatten()
    }

    /// True if no frame is in flight.
    fn is_quiet(&self) -> bool {
        self.lines.iter().all(Line::is_empty)
    }

    fn faults(&self, scenario: &Scenario, actions: &mut Vec<Action>) {
        for route in Route::ALL.into_iter().filter(|route| !self.line(*route).is_empty()) {
            let is_path = route.is_wan() && !self.session;
            if self.losses > 0 && (is_path || !route.is_wan()) {
                actions.push(Action::Lose(route));
            }
            if self.duplicates > 0 && is_path {
                actions.push(Action::Duplicate(route));
            }
            if self.overtakings > 0 && is_path && self.line(route).len() > 1 {
                actions.push(Action::Overtake(route));
            }
        }
        for (number, victim) in scenario.victims.iter().enumerate() {
            let can = match victim {
                Victim::Box(role) => self.boxes[*role as usize].is_up,
                Victim::Requester => !self.requester.is_over(),
                Victim::Responder | Victim::Refusal => self.responder.is_ready(),
            };
            if self.crashes > 0 && can {
                actions.push(Action::Crash(number));
            }
        }
        if self.early_timers > 0 && !self.is_quiet() {
            let early = |timer: &Timer| match timer {
                Timer::Requester => !self.requester.has_tried_again(scenario),
                timer => matches!(timer, Timer::Retransmission(_)),
            };
            actions.extend(self.timers(scenario).filter(early).map(Action::Fire));
        }
    }
}

/// The model for the checker.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The scenario.
    pub scenario: Scenario,
}

impl Model for Pair {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.scenario)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let scenario = &self.scenario;
        let waiting = Route::ALL.into_iter().filter(|route| !state.line(*route).is_empty());
        actions.extend(waiting.map(Action::Deliver));
        if state.batch == 0 {
            state.faults(scenario, actions);
        }
        let is_away = |role: &Role| !state.boxes[*role as usize].is_up;
        if scenario.away == Away::AWhile {
            actions.extend([Role::Near, Role::Far].into_iter().filter(is_away).map(Action::Return));
        }
        let can_begin = scenario.wan == Wan::Transport && !state.session;
        if can_begin && ![Role::Near, Role::Far].iter().any(is_away) {
            actions.push(Action::Begin);
        }
        if state.is_quiet() {
            let before = actions.len();
            actions.extend(state.timers(scenario).map(Action::Fire));
            let is_idle =
                actions.len() == before && state.requester.is_done() && !state.requester.is_over();
            if is_idle && usize::from(state.batch) + 1 < scenario.batches.len() {
                actions.push(Action::Post);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let scenario = &self.scenario;
        let mut state = *last;
        let taken =
            |state: &mut State, route: Route, index| state.lines[route as usize].take(index);
        match action {
            Action::Deliver(route) => {
                let frame = taken(&mut state, route, 0)?;
                state.arrive(scenario, route, frame);
            }
            Action::Overtake(route) => {
                state.overtakings -= 1;
                let frame = taken(&mut state, route, 1)?;
                state.arrive(scenario, route, frame);
            }
            Action::Duplicate(route) => {
                state.duplicates -= 1;
                let frame = state.line(route).get(0)?;
                state.arrive(scenario, route, frame);
            }
            Action::Lose(route) => {
                state.losses -= 1;
                taken(&mut state, route, 0)?;
            }
            Action::Fire(timer) => {
                state.early_timers -= u8::from(!state.is_quiet());
                state.fire(scenario, timer);
            }
            Action::Crash(number) => {
                state.crashes -= 1;
                state.crashed |= 1 << number;
                state.crash(scenario, *scenario.victims.get(number)?);
            }
            Action::Return(role) => state.boxes[role as usize].is_up = true,
            Action::Begin => state.session = true,
            Action::Post => {
                state.batch += 1;
                state.requester.post(scenario.batch_end(state.batch.into()));
            }
        }
        state.drain(scenario);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
