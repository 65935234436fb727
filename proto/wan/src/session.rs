//! A session with one far box: its streams, its paths and its handshake.

mod opening;
mod receive;
mod send;
mod transmit;

pub(crate) use opening::{Due, Open, Opening};
pub(crate) use transmit::Turn;

use crate::arrivals::Arrivals;
use crate::format::{Ack, Close, DatagramKind, Header, Ping, PingStep};
use crate::incoming::Incoming;
use crate::key::{Clocking, StreamKey};
use crate::outgoing::Outgoing;
use crate::parity_in::ParityIn;
use crate::path::{OutstandingPing, PING_AGAIN_MIN, PING_AGAIN_UNKNOWN, TxPath};
use crate::shared::{Body, ControlDatagram, TransportShared};
use crate::{Config, DropReason, PathStatus, Rate, SessionStatus};
use longhaul_node::{Deadline, FrameBuf, Side};
use longhaul_units::{Duration, Instant, Rng};
use longhaul_wire::{Path, Udp};
use std::collections::VecDeque;

/// PINGs of one path that wait for an answer; further ones displace the oldest.
const PONGS_MAX: usize = 8;

/// Identity of the far box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(crate) box_id: u64,
    pub(crate) instance: u64,
}

/// Progress of the handshake.
enum State {
    /// Created; no OPEN is sent yet.
    Begun,
    /// This box has sent an OPEN.
    Opening(Opening),
    /// Open at both boxes. `remote` is the far box's number of the session.
    Open { remote: u32 },
}

/// The receiving end of one of the far box's paths.
struct RxPath {
    arrivals: Arrivals,
    parity: ParityIn,
    /// Side of the last arrival; acknowledgements leave by it.
    side: Side,
    /// An acknowledgement is due, even if it reports nothing new.
    ack_is_due: bool,
}

pub(crate) struct Session {
    /// This box's number of the session.
    local: u32,
    peer: Peer,
    state: State,
    /// Addresses of control datagrams: those of two hosts behind the boxes.
    route: Path,
    /// It has carried a frame from inside.
    has_carried: bool,
    out: Outgoing,
    incoming: Incoming,
    tx_paths: Vec<TxPath>,
    /// Empty until the session is open.
    rx_paths: Vec<RxPath>,
    /// Repaired datagrams that are not yet handled.
    repaired: Vec<receive::Repaired>,
    /// PINGs that wait for an answer, by path.
    pongs: Vec<VecDeque<Ping>>,
    control_number: u32,
    control_heard: Option<u32>,
    down_since: Option<Instant>,
    /// Time of the last challenge.
    challenged_at: Option<Instant>,
    sweep_at: Instant,
    /// Time of the last `transmit`. Anything due before it waits for room or for a pacer.
    polled_at: Instant,
    next_path: usize,
}

impl Session {
    pub(crate) fn new(
        now: Instant,
        shared: &mut TransportShared,
        local: u32,
        peer: Peer,
        route: Path,
    ) -> Self {
        let [seed, tables_seed] = [shared.rng.next_u64(), shared.rng.next_u64()];
        let config = &shared.config;
        Session {
            local,
            peer,
            state: State::Begun,
            route,
            has_carried: false,
            out: Outgoing::new(config, tables_seed),
            incoming: Incoming::new(
                config.receive_bytes_max,
                config.streams_max,
                config.reorder_frames_max,
            ),
            tx_paths: tx_paths(now, config, seed),
            rx_paths: Vec::new(),
            repaired: Vec::new(),
            pongs: vec![VecDeque::with_capacity(PONGS_MAX); config.paths.len()],
            control_number: 0,
            control_heard: None,
            down_since: Some(now),
            challenged_at: None,
            sweep_at: now + config.stream_idle.divided_by(2),
            polled_at: Instant::ZERO,
            next_path: 0,
        }
    }

    /// Opens the session: the far box calls it `remote`, and has `paths` paths and `room` bytes.
    /// `heard` is the side of its message, and the RTT that the message shows.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        remote: u32,
        paths: u8,
        room: u64,
        heard: (Side, Option<Duration>),
    ) {
        let numbers = shared.config.numbers_max;
        let rx_path = || RxPath {
            arrivals: Arrivals::new(numbers),
            parity: ParityIn::default(),
            side: heard.0,
            ack_is_due: false,
        };
        self.rx_paths = (0..paths.clamp(1, 15)).map(|_| rx_path()).collect();
        self.state = State::Open { remote };
        self.out.room = room;
        if let (Some(tx_path), Some(rtt)) = (self.tx_paths.get_mut(heard.0 - 1), heard.1) {
            tx_path.note_rtt(now, rtt);
            tx_path.is_up = true;
            self.down_since = None;
        }
        shared.counters.sessions_opened += 1;
    }

    /// This box's number of the session.
    #[inline]
    pub(crate) fn local(&self) -> u32 {
        self.local
    }

    /// The far box's number of the session, once it is open.
    #[inline]
    pub(crate) fn remote(&self) -> Option<u32> {
        match self.state {
            State::Open { remote } => Some(remote),
            State::Begun | State::Opening(_) => None,
        }
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.remote().is_some()
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Addresses of control datagrams.
    pub(crate) fn route(&self) -> Path {
        self.route
    }

    /// `true` if the session has carried a frame from inside.
    pub(crate) fn has_carried(&self) -> bool {
        self.has_carried
    }

    pub(crate) fn opening(&self) -> Option<&Opening> {
        match &self.state {
            State::Opening(opening) => Some(opening),
            State::Begun | State::Open { .. } => None,
        }
    }

    /// Starts asking the far box to open the session.
    pub(crate) fn ask_to_open(&mut self, opening: Opening) {
        self.state = State::Opening(opening);
    }

    /// Returns the handshake step that is due.
    pub(crate) fn press_on(&mut self, now: Instant, every: Duration) -> Due {
        match &mut self.state {
            State::Opening(opening) => opening.press_on(now, every),
            State::Begun | State::Open { .. } => Due::Nothing,
        }
    }

    /// Opens a stream for `key`. `None` if the maximum is reached.
    pub(crate) fn open_stream(&mut self, now: Instant, key: StreamKey) -> Option<u16> {
        let slot = self.out.open(now, key)?;
        self.has_carried = true;
        Some(slot)
    }

    /// Puts a frame from inside into its stream.
    #[inline]
    pub(crate) fn push(
        &mut self,
        now: Instant,
        slot: u16,
        clocking: Clocking,
        layout: Udp,
        frame: FrameBuf,
    ) -> Result<(), DropReason> {
        self.out.push(now, slot, clocking, layout, frame)
    }

    /// Bytes that it accepts from inside before more than `queue_max` wait unsent.
    pub(crate) fn intake_bytes(&self, queue_max: u64) -> u64 {
        self.out.free_bytes().min(queue_max.saturating_sub(self.out.fresh_bytes()))
    }

    /// Frames that it holds, in both directions.
    pub(crate) fn frames(&self) -> u64 {
        self.out.frames() + self.incoming.waiting() as u64
    }

    /// `true` while its first OPEN is unanswered.
    pub(crate) fn is_about_to_open(&self) -> bool {
        self.opening().is_some_and(Opening::is_first_try)
    }

    /// True if it is open and no path has an RTT yet.
    pub(crate) fn is_beginning(&self) -> bool {
        self.is_open()
            && self.tx_paths.iter().all(|tx_path| tx_path.flight.rtt.smoothed() == Duration::ZERO)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.tx_paths.iter().any(|tx_path| tx_path.is_up)
    }

    /// True if no path has answered for `timeout`.
    pub(crate) fn is_silent(&self, now: Instant, timeout: Duration) -> bool {
        !self.is_up() && self.down_since.is_some_and(|since| now.since(since) >= timeout)
    }

    /// Sends a PING on every path, to ask the far box whether it still knows the session; at most
    /// every half round trip.
    pub(crate) fn challenge(&mut self, now: Instant, shared: &mut TransportShared) {
        let Some(remote) = self.remote() else { return };
        let rtt = self.tx_paths.iter().map(|tx_path| tx_path.flight.rtt.smoothed()).max();
        let again = match rtt {
            None | Some(Duration::ZERO) => PING_AGAIN_UNKNOWN,
            Some(rtt) => rtt.divided_by(2).max(PING_AGAIN_MIN),
        };
        if self.challenged_at.is_some_and(|at| now.since(at) < again) {
            return;
        }
        self.challenged_at = Some(now);
        for path in 0..self.tx_paths.len() {
            let (header, ping) = self.ask_path(now, shared, remote, path);
            let (route, body) = (self.route, Body::Ping(ping));
            shared.queue_control(ControlDatagram { side: path + 1, route, header, body });
        }
    }

    /// Builds a PING on `path`, counted from 0, and notes it as sent.
    fn ask_path(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        remote: u32,
        path: usize,
    ) -> (Header, Ping) {
        // The low bits name the path, so that the answer names it too.
        let nonce = shared.rng.next_u64() << 4 | path as u64;
        let tx_path = &mut self.tx_paths[path];
        let next_number = tx_path.flight.next_number();
        tx_path.note_ping_sent(&shared.config, OutstandingPing { nonce, at: now });
        let ping = Ping { step: PingStep::Ask, session: self.local, nonce, next_number };
        (Header { path: path as u8, ..self.control(DatagramKind::Ping, remote) }, ping)
    }

    /// True while `path`, from 0, answers.
    pub(crate) fn path_is_up(&self, path: usize) -> bool {
        self.tx_paths.get(path).is_some_and(|tx_path| tx_path.is_up)
    }

    /// Releases the memory of a delivered frame of `cost` bytes.
    #[inline]
    pub(crate) fn gone(&mut self, cost: u32) {
        self.incoming.gone(cost);
        if self.incoming.owes_room() {
            self.rx_paths.iter_mut().for_each(|rx_path| rx_path.ack_is_due = true);
        }
    }

    pub(crate) fn handle_ack(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        header: &Header,
        ack: &Ack,
    ) {
        let Some(tx_path) = self.tx_paths.get_mut(usize::from(header.path)) else {
            shared.counters.drops.count(DropReason::Malformed);
            return;
        };
        let copies =
            tx_path.flight.loss.copies(tx_path.flight.in_flight(), shared.config.copies_max);
        let (out, spurious) = (&mut self.out, tx_path.flight.spurious);
        let was_overdue = tx_path.is_overdue(now, &shared.config);
        let mut is_progress = false;
        let delay = Duration::from_ns(ack.delay_ns.into());
        let is_believed = tx_path.flight.take(now, ack.entries(), delay, |record, fate| {
            is_progress = true;
            out.settle(record, fate, copies);
        });
        if !is_believed {
            shared.counters.ack_outside += 1;
            return;
        }
        shared.counters.acks_received += 1;
        shared.counters.spurious += tx_path.flight.spurious - spurious;
        if is_progress {
            tx_path.note_progress(now);
        }
        tx_path.detect(now, |record, fate| out.settle(record, fate, copies));
        tx_path.parity.hear(now, &tx_path.flight, ack.repaired, ack.bursts);
        tx_path.parity.look(now, &tx_path.flight, shared.config.copies_max);
        if let Some(pace) = &mut tx_path.pace {
            pace.hear(now, &tx_path.flight, ack.congested);
        }
        if is_progress && was_overdue {
            self.note_resumed(now, &shared.config, usize::from(header.path));
        }
        let is_newer = |heard: u32| (header.number.wrapping_sub(heard) as i32) > 0;
        if self.control_heard.is_none_or(is_newer) {
            self.control_heard = Some(header.number);
            self.out.room = ack.room_bytes;
        }
    }

    /// Handles a PING. Returns `false` if the far box does not know this session. `return_route`
    /// leads to an address that the far box serves.
    pub(crate) fn handle_ping(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        side: Side,
        (header, ping): (&Header, &Ping),
        return_route: Option<Path>,
    ) -> bool {
        match ping.step {
            PingStep::Ask => {
                // The hosts' Ethernet addresses may have changed.
                self.route = return_route.unwrap_or(self.route);
                if let Some(rx_path) = self.rx_paths.get_mut(usize::from(header.path)) {
                    rx_path.arrivals.skip_to(ping.next_number);
                    rx_path.ack_is_due = true;
                }
                if let Some(pongs) = self.pongs.get_mut(side - 1) {
                    if pongs.len() == PONGS_MAX {
                        pongs.pop_front();
                    }
                    pongs.push_back(*ping);
                }
                true
            }
            step => {
                let tx_path = self.tx_paths.get_mut(usize::from(header.path));
                let was_overdue =
                    tx_path.as_ref().is_some_and(|tx_path| tx_path.is_overdue(now, &shared.config));
                let is_ours = match (tx_path, step) {
                    (Some(tx_path), PingStep::Unknown) => {
                        tx_path.is_outstanding(ping.nonce) || tx_path.mtu.is_outstanding(ping.nonce)
                    }
                    (Some(tx_path), _) => {
                        tx_path.answered(now, ping.nonce)
                            || tx_path.answered_length(now, ping.nonce)
                    }
                    (None, _) => false,
                };
                if !is_ours {
                    shared.counters.drops.count(DropReason::Unasked);
                } else if step == PingStep::Answer {
                    self.down_since = None;
                    if was_overdue {
                        self.note_resumed(now, &shared.config, usize::from(header.path));
                    }
                }
                !(is_ours && step == PingStep::Unknown)
            }
        }
    }

    /// Notes that the far box answers on `path` again. If the far box was held up, answers on the
    /// other paths follow.
    fn note_resumed(&mut self, now: Instant, config: &Config, path: usize) {
        let others = self.tx_paths.iter_mut().enumerate().filter(|(other, _)| *other != path);
        others.for_each(|(_, tx_path)| tx_path.silence.excuse(now, config));
    }

    /// Latest time at which a path other than `path` shows that the far box ran.
    fn far_ran_at(&self, now: Instant, config: &Config, path: usize) -> Option<Instant> {
        let others = self.tx_paths.iter().enumerate().filter(|(other, _)| *other != path);
        others.filter_map(|(_, tx_path)| tx_path.far_ran_at(now, config)).max()
    }

    /// Handles deadlines. Returns `false` if the session has ended.
    pub(crate) fn tick(&mut self, now: Instant, shared: &mut TransportShared) -> bool {
        if !self.is_open() {
            return true;
        }
        let config = &shared.config;
        let mut probes = 0;
        for path in 0..self.tx_paths.len() {
            let far_ran_at = self.far_ran_at(now, config, path);
            let tx_path = &mut self.tx_paths[path];
            let copies = tx_path.flight.loss.copies(tx_path.flight.in_flight(), config.copies_max);
            let out = std::cell::RefCell::new(&mut self.out);
            let told = |record, fate| out.borrow_mut().settle(record, fate, copies);
            let probe = |record| {
                probes += 1;
                out.borrow_mut().repeat(record, 1);
            };
            if tx_path.tick(now, config, far_ran_at, told, probe) {
                shared.counters.path_outages += 1;
            }
        }
        shared.counters.tail_probes += probes;
        shared.counters.streams_astray += self.out.astray.len() as u64;
        shared.streams_astray.append(&mut self.out.astray);
        if !self.is_up() {
            let since = *self.down_since.get_or_insert(now);
            return now.since(since) < config.dead_after;
        }
        if self.sweep_at <= now {
            self.sweep_at = now + config.stream_idle.divided_by(2);
            let long_ago = Instant::from_ps(now.as_ps().saturating_sub(config.stream_idle.as_ps()));
            let ended = self.out.end_idle(now, long_ago);
            shared.streams_ended.extend(ended);
        }
        true
    }

    /// Delay of acknowledgements.
    fn ack_delay(&self, config: &Config) -> Duration {
        let up = self.tx_paths.iter().filter(|tx_path| tx_path.is_up);
        up.map(|tx_path| tx_path.ack_delay(config)).min().unwrap_or(config.ack_delay_max)
    }

    /// Returns a header with the next control number.
    fn control(&mut self, kind: DatagramKind, remote: u32) -> Header {
        self.control_number = self.control_number.wrapping_add(1);
        Header { number: self.control_number, ..Header::new(kind, remote) }
    }

    /// Returns the CLOSE that tells the far box that the session has ended.
    pub(crate) fn closing(&mut self) -> Option<(Header, Close)> {
        let remote = self.remote()?;
        Some((self.control(DatagramKind::Close, remote), Close { session: self.local }))
    }

    /// Next deadline.
    pub(crate) fn deadline(&self, shared: &TransportShared) -> Option<Deadline> {
        if let Some(opening) = self.opening() {
            return Some(Deadline { at: opening.next_at(), reason: "opening a session" });
        }
        let config = &shared.config;
        let delay = self.ack_delay(config);
        let at = |at: Option<Instant>, reason| at.map(|at| Deadline { at, reason });
        // Anything due at the last `transmit` waits for room or for a pacer, not for time.
        let later = |at: &Instant| *at > self.polled_at;
        let paths = self.tx_paths.iter().map(|tx_path| tx_path.deadline(config, self.polled_at));
        let up = self.tx_paths.iter().filter(|tx_path| tx_path.is_up);
        let probes = up.map(|tx_path| {
            at(Some(tx_path.mtu.next_at()).filter(later), "the length that a path takes")
        });
        let acks = self
            .rx_paths
            .iter()
            .map(|rx_path| rx_path.arrivals.ack_at(delay, config.ack_every).filter(later));
        let acks = acks.map(|ack| at(ack, "acknowledgement"));
        let over = self.down_since.map(|since| since + config.dead_after);
        let own = [
            at(self.out.copy_at().filter(later), "copy of a repetition"),
            at(over, "end of a session"),
            at(self.is_up().then_some(self.sweep_at), "idle streams"),
        ];
        paths.chain(probes).chain(acks).chain(own).fold(None, Deadline::earliest)
    }

    pub(crate) fn status(&self, config: &Config) -> SessionStatus {
        let path = |(tx_path, path): (&TxPath, &crate::PathConfig)| PathStatus {
            is_up: tx_path.is_up,
            rtt: (tx_path.flight.rtt.smoothed() > Duration::ZERO)
                .then(|| tx_path.flight.rtt.smoothed()),
            rtt_least: tx_path.flight.rtt.least(),
            loss: tx_path.parity.loss().max(tx_path.flight.loss.rate()),
            residual: tx_path.flight.loss.rate(),
            parity: tx_path
                .parity
                .layout()
                .map_or_else(|| "none".to_string(), |layout| layout.to_string()),
            parity_sent: tx_path.parity.sent,
            repaired: tx_path.parity.repaired(),
            reordering_window: tx_path.flight.reordering.window(tx_path.flight.rtt.smoothed()),
            in_flight: tx_path.flight.in_flight(),
            copies: tx_path.flight.loss.copies(tx_path.flight.in_flight(), config.copies_max),
            sent: tx_path.flight.sent,
            lost: tx_path.flight.lost,
            spurious: tx_path.flight.spurious,
            outages: tx_path.outages,
            rate: tx_path.pace.as_ref().map(|pace| pace.rate().rate()).or(path.rate.most()),
            delivered: tx_path.pace.as_ref().and_then(|pace| pace.rate().delivered()),
            mtu: tx_path.mtu.get(),
            mtu_is_settled: tx_path.mtu.is_settled(),
            split: tx_path.split,
            black_holes: tx_path.mtu.black_holes,
            queue_delay: tx_path.pace.as_ref().map(|pace| pace.rate().queue_delay()),
            limited_by: match path.rate {
                Rate::Port => "port",
                Rate::Fixed(_) => "rate",
                Rate::Adaptive { .. } => {
                    tx_path.pace.as_ref().map_or("path", |pace| pace.rate().limited_by().name())
                }
            },
        };
        let sum = |of: fn(&Arrivals) -> u64| {
            self.rx_paths.iter().map(|rx_path| of(&rx_path.arrivals)).sum()
        };
        SessionStatus {
            box_id: self.peer.box_id,
            name: self.local,
            is_open: self.is_open(),
            paths: self.tx_paths.iter().zip(&config.paths).map(path).collect(),
            streams_out: self.out.streams_open(),
            streams_in: self.incoming.streams_open(),
            send_bytes: self.out.bytes(),
            send_bytes_peak: self.out.bytes_peak(),
            receive_bytes: self.incoming.bytes(),
            receive_bytes_peak: self.incoming.bytes_peak(),
            parity_bytes: self.rx_paths.iter().map(|rx_path| rx_path.parity.held_bytes()).sum(),
            frames_waiting: self.incoming.waiting() as u64,
            far_room_bytes: self.out.room,
            duplicates_in: sum(|arrivals| arrivals.duplicates),
            congested_in: sum(|arrivals| arrivals.congested),
        }
    }
}

fn tx_paths(now: Instant, config: &Config, seed: u64) -> Vec<TxPath> {
    (0..).zip(&config.paths).map(|(path, of)| TxPath::new(now, config, of, seed ^ path)).collect()
}
