//! A session with one far box: streams, paths and what they owe each other.

mod receive;
mod send;

use crate::arrivals::Arrivals;
use crate::format::{Ack, Close, Datagram, DatagramKind, Header, Ping, PingStep};
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::pace::Pace;
use crate::parity_in::ParityIn;
use crate::path::{OutstandingPing, PING_AGAIN_MIN, PING_AGAIN_UNKNOWN, TxPath};
use crate::shared::{Body, ControlDatagram, TransportShared};
use crate::{Config, DropReason, PathStatus, Rate, SessionStatus};
use longhaul_cc::{Gate, wire_bytes};
use longhaul_node::{Deadline, Side, Transmit};
use longhaul_units::{Duration, Instant, Rng};
use longhaul_wire::Path;
use std::collections::VecDeque;

/// PINGs of one path that wait to be answered; of more, the newest count.
const PONGS_MAX: usize = 8;

/// Who the far box is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(crate) box_id: u64,
    pub(crate) instance: u64,
}

/// The box has been asked to open the session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) cookie: u64,
    pub(crate) nonce: u64,
    pub(crate) side: Side,
    /// When it was asked last, and when it is again unless it answers.
    pub(crate) asked_at: Instant,
    pub(crate) next_at: Instant,
    /// Wait for the next answer.
    pub(crate) timeout: Duration,
    pub(crate) tries: u32,
}

/// The receiving end of one of the far box's paths.
struct RxPath {
    arrivals: Arrivals,
    parity: ParityIn,
    /// The side by which it came last: acknowledgements go back there.
    side: Side,
    /// An acknowledgement is due even if it reports nothing new.
    ack_is_due: bool,
}

/// See the module.
pub(crate) struct Session {
    pub(crate) local: u32,
    /// The session at the far box, once it is open.
    pub(crate) remote: Option<u32>,
    pub(crate) peer: Peer,
    pub(crate) opening: Option<Opening>,
    /// Addresses of control datagrams: those of hosts that talk to each other.
    pub(crate) route: Path,
    /// It has carried something from inside.
    pub(crate) has_carried: bool,
    pub(crate) out: Outgoing,
    pub(crate) incoming: Incoming,
    tx_paths: Vec<TxPath>,
    rx_paths: Vec<RxPath>,
    /// What parity has brought and is to be handled.
    repaired: Vec<receive::Repaired>,
    /// PINGs to be answered, by side.
    pongs: Vec<VecDeque<Ping>>,
    control_number: u32,
    control_heard: Option<u32>,
    down_since: Option<Instant>,
    /// When it was last asked out of turn whether it is still there.
    challenged_at: Option<Instant>,
    sweep_at: Instant,
    /// When it was last let send: what was due then waits for room or for a pacer.
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
            remote: None,
            peer,
            opening: None,
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

    /// The far box is known by `remote`, has `paths` paths and `room` bytes. `rtt` was measured by
    /// `side`.
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
        self.remote = Some(remote);
        self.opening = None;
        self.out.room = room;
        if let (Some(tx_path), Some(rtt)) = (self.tx_paths.get_mut(heard.0 - 1), heard.1) {
            tx_path.note_rtt(now, rtt);
            tx_path.is_up = true;
            self.down_since = None;
        }
        shared.counters.sessions_opened += 1;
    }

    /// The far box is there, and has been asked once to open.
    pub(crate) fn is_about_to_open(&self) -> bool {
        self.opening.is_some_and(|opening| opening.tries == 1)
    }

    /// It is open, and its first path is about to work.
    pub(crate) fn is_beginning(&self) -> bool {
        self.remote.is_some()
            && self.tx_paths.iter().all(|tx_path| tx_path.flight.rtt.smoothed() == Duration::ZERO)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.tx_paths.iter().any(|tx_path| tx_path.is_up)
    }

    /// No path has answered for `timeout`.
    pub(crate) fn is_silent(&self, now: Instant, timeout: Duration) -> bool {
        !self.is_up() && self.down_since.is_some_and(|since| now.since(since) >= timeout)
    }

    /// Asks the far box on every path, at once, whether it still knows the session; not more often
    /// than it can answer.
    pub(crate) fn challenge(&mut self, now: Instant, shared: &mut TransportShared) {
        let Some(remote) = self.remote else { return };
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

    /// A PING of `path`, from 0.
    fn ask_path(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        remote: u32,
        path: usize,
    ) -> (Header, Ping) {
        // The path stands in the low bits, so that the answer names the path that the PING took.
        let nonce = shared.rng.next_u64() << 4 | path as u64;
        let tx_path = &mut self.tx_paths[path];
        let next_number = tx_path.flight.next_number();
        tx_path.note_ping_sent(&shared.config, OutstandingPing { nonce, at: now });
        let ping = Ping { step: PingStep::Ask, session: self.local, nonce, next_number };
        (Header { path: path as u8, ..self.control(DatagramKind::Ping, remote) }, ping)
    }

    /// True while this path, from 0, answers.
    pub(crate) fn path_is_up(&self, path: usize) -> bool {
        self.tx_paths.get(path).is_some_and(|tx_path| tx_path.is_up)
    }

    /// A delivered frame has left inside.
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

    /// False: the far box no longer knows this session. `return_route` is to an address that it
    /// serves.
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

    /// The far box answers again after it was silent on `path`: perhaps it was held up, and answers
    /// to the other paths follow.
    fn note_resumed(&mut self, now: Instant, config: &Config, path: usize) {
        let others = self.tx_paths.iter_mut().enumerate().filter(|(other, _)| *other != path);
        others.for_each(|(_, tx_path)| tx_path.silence.excuse(now, config));
    }

    /// Up to when the paths other than `path` show that the far box ran.
    fn far_ran_at(&self, now: Instant, config: &Config, path: usize) -> Option<Instant> {
        let others = self.tx_paths.iter().enumerate().filter(|(other, _)| *other != path);
        others.filter_map(|(_, tx_path)| tx_path.far_ran_at(now, config)).max()
    }

    /// What time brings. False: the session is over.
    pub(crate) fn tick(&mut self, now: Instant, shared: &mut TransportShared) -> bool {
        if self.remote.is_none() {
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

    /// Sends what is due, as far as there is room.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        gates: &mut [Gate],
        out: &mut dyn Transmit,
    ) {
        let Some(remote) = self.remote else { return };
        self.polled_at = now;
        self.tx_paths
            .iter_mut()
            .filter_map(|tx_path| tx_path.pace.as_mut())
            .for_each(Pace::stop_waiting);
        self.send_control(now, shared, gates, remote, out);
        loop {
            let has_data = self.out.has_next(now);
            if !has_data {
                let paths = self.tx_paths.iter_mut().zip(gates.iter());
                paths.for_each(|(tx_path, gate)| tx_path.note_room(now, gate));
            }
            let Some((path, is_parity)) = self.choose(now, shared, gates, has_data, out) else {
                return;
            };
            if is_parity {
                self.send_parity(now, shared, gates, remote, path, out);
            } else if !self.send_next(now, shared, gates, remote, path, out) {
                return;
            }
        }
    }

    /// The path that sends next, round robin: one that is up, may send now and has room; and
    /// whether it sends parity.
    fn choose(
        &mut self,
        now: Instant,
        shared: &TransportShared,
        gates: &mut [Gate],
        has_data: bool,
        out: &mut dyn Transmit,
    ) -> Option<(usize, bool)> {
        let span_max = u64::from(shared.config.numbers_max) / 2;
        for _ in 0..self.tx_paths.len() {
            let path = self.next_path;
            self.next_path = (self.next_path + 1) % self.tx_paths.len();
            let tx_path = &mut self.tx_paths[path];
            let takes_data = has_data && tx_path.flight.span() < span_max;
            let is_parity = tx_path.parity.is_due();
            let can = tx_path.is_up && (takes_data || is_parity);
            let is_urgent = self.out.has_repeat();
            if can
                && gates[path].is_open(now)
                && tx_path.is_open(now, is_urgent)
                && out.room(path + 1) > 0
            {
                return Some((path, is_parity));
            }
        }
        None
    }

    fn send_control(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        gates: &mut [Gate],
        remote: u32,
        out: &mut dyn Transmit,
    ) {
        let is_overdue =
            self.tx_paths.iter().any(|tx_path| tx_path.is_overdue(now, &shared.config));
        for path in 0..self.tx_paths.len() {
            while out.room(path + 1) > 0
                && let Some(ping) = self.pongs[path].pop_front()
            {
                let header =
                    Header { path: ping_path(&ping), ..self.control(DatagramKind::Ping, remote) };
                let pong = Ping { step: PingStep::Answer, session: self.local, ..ping };
                self.send(now, shared, gates, (path, &header), |body| pong.write(body), out);
            }
            let tx_path = &self.tx_paths[path];
            // Another path shows whether the far box runs.
            let is_witness = is_overdue && tx_path.is_idle(now, &shared.config);
            if (is_witness || tx_path.wants_ping(now, &shared.config)) && out.room(path + 1) > 0 {
                self.send_ping(now, shared, gates, remote, path, out);
            }
            self.send_probes(now, shared, gates, remote, path, out);
        }
        for about in 0..self.rx_paths.len() {
            self.send_ack(now, shared, gates, remote, about, out);
        }
    }

    fn send_ping(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        gates: &mut [Gate],
        remote: u32,
        path: usize,
        out: &mut dyn Transmit,
    ) {
        let (header, ping) = self.ask_path(now, shared, remote, path);
        self.send(now, shared, gates, (path, &header), |body| ping.write(body), out);
    }

    fn send_ack(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        gates: &mut [Gate],
        remote: u32,
        about: usize,
        out: &mut dyn Transmit,
    ) {
        let rx_path = &self.rx_paths[about];
        let back = rx_path.side - 1;
        let path = if self.tx_paths.get(back).is_some_and(|tx_path| tx_path.is_up) {
            back
        } else {
            self.tx_paths.iter().position(|tx_path| tx_path.is_up).unwrap_or(back)
        };
        let delay = self.ack_delay(shared);
        let is_due =
            rx_path.arrivals.ack_at(delay, shared.config.ack_every).is_some_and(|at| at <= now);
        if !(is_due || rx_path.ack_is_due) || out.room(path + 1) == 0 {
            return;
        }
        let room = self.incoming.tell_room();
        let rx_path = &mut self.rx_paths[about];
        rx_path.ack_is_due = false;
        let ack = rx_path.arrivals.report(now, delay, room);
        shared.counters.acks_sent += 1;
        let header = Header { path: about as u8, ..self.control(DatagramKind::Ack, remote) };
        self.send(now, shared, gates, (path, &header), |body| ack.write(body), out);
    }

    /// Wait before an acknowledgement.
    fn ack_delay(&self, shared: &TransportShared) -> Duration {
        let up = self
            .tx_paths
            .iter()
            .filter(|tx_path| tx_path.is_up)
            .map(|tx_path| tx_path.ack_delay(&shared.config));
        up.min().unwrap_or(shared.config.ack_delay_max)
    }

    /// A header with the next number of control datagrams.
    fn control(&mut self, kind: DatagramKind, remote: u32) -> Header {
        self.control_number = self.control_number.wrapping_add(1);
        Header { number: self.control_number, ..Header::new(kind, remote) }
    }

    fn send(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        gates: &mut [Gate],
        (path, header): (usize, &Header),
        fill: impl FnOnce(&mut [u8; crate::format::BODY_MAX]) -> usize,
        out: &mut dyn Transmit,
    ) {
        let datagram = Datagram::new(&self.route, shared.config.port, header, fill);
        let frame = datagram.frame();
        let bytes = wire_bytes(frame.len());
        gates[path].take(now, bytes);
        self.tx_paths[path].take(now, bytes);
        shared.counters.wan_frames_out += 1;
        out.transmit(path + 1, &frame);
    }

    /// Tells the far box that the session is over.
    pub(crate) fn closing(&mut self) -> Option<(Header, Close)> {
        let remote = self.remote?;
        Some((self.control(DatagramKind::Close, remote), Close { session: self.local }))
    }

    /// When to be called next.
    pub(crate) fn deadline(&self, shared: &TransportShared) -> Option<Deadline> {
        if let Some(opening) = self.opening {
            return Some(Deadline { at: opening.next_at, reason: "opening a session" });
        }
        let config = &shared.config;
        let delay = self.ack_delay(shared);
        let at = |at: Option<Instant>, reason| at.map(|at| Deadline { at, reason });
        // What was due when it was last let send waits for room or for a pacer, not for time.
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
            at(Some(self.sweep_at), "idle streams"),
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
            is_open: self.remote.is_some(),
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

/// The asker's path: it answers by what it asked, whatever side it came by.
fn ping_path(ping: &Ping) -> u8 {
    (ping.nonce & 0xf) as u8
}
