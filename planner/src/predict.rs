//! The expected goodput and its limit.
//!
//! Every limit gives a goodput; the minimum is the prediction and names the limit. Loss then
//! reduces it, as do the first and last window of a finite run.

use crate::nic::NicProfile;
use crate::path::Path;
use crate::run::Run;
use crate::timeout::{patience_ns, timeout_ns};
use crate::window::{self, Acknowledged, Window};
use crate::wire::Message;
use crate::workload::Workload;
use crate::{Invalid, wire};
use serde::Serialize;
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::fmt;

/// A limit of goodput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The rate of the path or port, less headers.
    LineRate,
    /// The NIC's time per packet.
    PacketRate,
    /// The NIC's time per message.
    MessageRate,
    /// The program's time for posting and polling.
    Program,
    /// The program's queue: its posted messages, less those that wait for a moderated completion.
    QueueDepth,
    /// The NIC's limit of unacknowledged WQEs of a QP.
    OutstandingWqes,
    /// The NIC's limit of outstanding READs and atomics of a QP.
    OutstandingReads,
    /// The NIC's limit of unacknowledged packets of a QP.
    PsnWindow,
    /// Retransmissions after loss.
    Loss,
    /// The retries are exhausted before the first acknowledgement can arrive.
    Retries,
    /// The accelerator's packets per second.
    Accelerator,
    /// The rate of the path, less the transport's headers and repair.
    Transport,
    /// The processors of a storage target.
    Target,
    /// The drives of a storage target.
    Drives,
}

impl Limit {
    /// Short description for a table.
    pub fn text(self) -> &'static str {
        match self {
            Limit::LineRate => "line rate",
            Limit::PacketRate => "packets per second",
            Limit::MessageRate => "messages per second",
            Limit::Program => "the program's CPU",
            Limit::QueueDepth => "queue depth",
            Limit::OutstandingWqes => "outstanding WQEs",
            Limit::OutstandingReads => "outstanding READs",
            Limit::PsnWindow => "packet window",
            Limit::Loss => "loss",
            Limit::Retries => "retries end too soon",
            Limit::Accelerator => "accelerator's packets/s",
            Limit::Transport => "line rate less repair",
            Limit::Target => "the target's CPU",
            Limit::Drives => "the drives",
        }
    }

    /// `true` for a window, which more queue pairs widen.
    pub fn is_window(self) -> bool {
        matches!(
            self,
            Limit::QueueDepth | Limit::OutstandingWqes | Limit::OutstandingReads | Limit::PsnWindow
        )
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// One limit, and the goodput that it would allow alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The limit.
    pub limit: Limit,
    /// Payload bits per second, without loss, in steady state.
    pub goodput_bps: f64,
}

/// Prediction for a workload on a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Payload bits of completed messages per second, over all queue pairs.
    pub goodput_bps: f64,
    /// Its limit.
    pub limit: Limit,
    /// Messages of one queue pair in flight.
    pub in_flight_messages: f64,
    /// Payload bytes in flight, over all queue pairs.
    pub in_flight_bytes: f64,
    /// Time from a message's transmission until its place is filled again.
    pub turn_ns: f64,
    /// The rate less headers.
    pub ceiling_bps: f64,
    /// Share of first transmissions among the packets sent: 1 without loss.
    pub loss_factor: f64,
    /// Result of perftest's latency test for this operation and size: half a round trip for WRITE
    /// and SEND, a whole one for READ and atomics.
    pub latency_ns: f64,
    /// Bytes, packets and time of one message.
    pub message: Message,
    /// Every limit alone, the lowest first.
    pub bounds: Vec<Bound>,
}

/// Loss is the limit if it costs more than this share.
const LOSS_SHARE: f64 = 0.05;

impl Prediction {
    /// Predicts `workload` over `path` between two NICs `nic`.
    ///
    /// # Errors
    ///
    /// A value of the path or workload is out of range.
    pub fn new(path: &Path, nic: &NicProfile, workload: &Workload) -> Result<Self, Invalid> {
        path.check()?;
        workload.check()?;
        let model = Model::new(path, nic, workload);
        let turns = model.turns();
        let bounds = model.bounds(&turns);
        let closest = bounds[0];
        let turn = turns.into_iter().find(|turn| turn.limit == closest.limit);
        let endless = closest.goodput_bps;
        let one_ns = model.trip_ns() + nic.turn_ns() + model.message.busy_ns;
        let turn_ns = turn.map_or(one_ns, |turn| turn.ns / turn.rounds);
        let loss_factor = model.loss_factor(endless);
        let idle = model.idle_factor(turn.as_ref());
        let mut goodput_bps = model.with_ends(endless, turn.as_ref(), loss_factor * idle);
        let mut limit = closest.limit;
        if is_limited_by_loss(&bounds, loss_factor * idle) {
            limit = Limit::Loss;
        }
        if model.dies() {
            (goodput_bps, limit) = (0.0, Limit::Retries);
        }
        let in_flight_bytes = goodput_bps * turn_ns / 8e9;
        let bytes_per_qp = workload.size as f64 * f64::from(workload.qps);
        Ok(Prediction {
            goodput_bps,
            limit,
            in_flight_messages: in_flight_bytes / bytes_per_qp,
            in_flight_bytes,
            turn_ns,
            ceiling_bps: model.bits() / model.message.wire_ns * 1e9,
            loss_factor,
            latency_ns: Model { qps: 1.0, ..model }.latency_ns(),
            message: model.message,
            bounds,
        })
    }

    /// The prediction under a further limit.
    pub(crate) fn bounded(mut self, limit: Limit, goodput_bps: f64) -> Self {
        let before = self.bounds.partition_point(|bound| bound.goodput_bps <= goodput_bps);
        self.bounds.insert(before, Bound { limit, goodput_bps });
        if goodput_bps < self.goodput_bps {
            let share = goodput_bps / self.goodput_bps;
            self.in_flight_messages *= share;
            self.in_flight_bytes *= share;
            (self.goodput_bps, self.limit) = (goodput_bps, limit);
        }
        self
    }
}

/// Maximum waits for the NIC per turn of the program's queue to consider: at this number the result
/// is within 0.1 % of the NIC's own limit.
const WAITS_MAX: u64 = 1000;
/// Bytes that a NIC queues at its port ahead of the line. Assumed, as in the simulator: with
/// packets ahead, queue pairs drift apart a little sooner.
const PORT_BYTES: f64 = 16_384.0;
/// The played part of a run is at least this multiple of the program's queue.
const PLAYED_QUEUES: u64 = 2;

/// Returns whether loss costs more than [`LOSS_SHARE`], and more than the window if the lowest
/// limit is one.
fn is_limited_by_loss(bounds: &[Bound], factor: f64) -> bool {
    let closest = bounds[0].goodput_bps;
    let without_windows = bounds.iter().find(|bound| !bound.limit.is_window());
    let by_windows = without_windows.map_or(1.0, |hard| closest / hard.goodput_bps);
    1.0 - factor > LOSS_SHARE && factor < by_windows
}

/// One turn of a window.
#[derive(Clone, Copy, Debug)]
struct Turn {
    limit: Limit,
    /// Messages of one QP that fit the window. This and the next two are fractions if the window
    /// counts packets.
    window: f64,
    /// Messages whose places are released together.
    lot: f64,
    /// Messages per turn: the whole lots of the window.
    messages: f64,
    ns: f64,
    /// Round trips in it.
    rounds: f64,
    /// The window has a single lot, released by its last message: no packet follows that would
    /// reveal the loss of that message.
    ends_silently: bool,
}

/// `Less` if `a` has a lower rate than `b`.
fn slower(a: &Turn, b: &Turn) -> Ordering {
    (a.messages * b.ns).total_cmp(&(b.messages * a.ns))
}

/// Inputs and what follows from them directly.
struct Model<'a> {
    path: &'a Path,
    nic: &'a NicProfile,
    work: &'a Workload,
    message: Message,
    qps: f64,
    /// The packet window, computed on first use.
    psn: OnceCell<Turn>,
}

impl<'a> Model<'a> {
    fn new(path: &'a Path, nic: &'a NicProfile, work: &'a Workload) -> Self {
        let message = Message::new(path, nic, work.op, work.size);
        Model { path, nic, work, message, qps: f64::from(work.qps), psn: OnceCell::new() }
    }

    /// Payload bits of a message.
    fn bits(&self) -> f64 {
        self.work.size as f64 * 8.0
    }

    /// Round trip with the serialisation of the acknowledgement or request.
    fn trip_ns(&self) -> f64 {
        self.path.rtt_ns() + self.message.reverse_bytes * 8e9 / wire::rate_bps(self.path, self.nic)
    }

    /// Time between two messages of the program: the slower of port and program.
    fn step_ns(&self) -> f64 {
        self.message.busy_ns.max(self.nic.post_ns as f64)
    }

    /// The windows of one QP.
    fn turns(&self) -> [Turn; 3] {
        [self.queue_turn(), self.nic_turn(), self.psn_turn()]
    }

    /// The program's queue, with the most expensive number of waits for the NIC's limit per turn.
    /// Queue pairs do not delay each other: lots that meet on the line drift apart over some turns.
    fn queue_turn(&self) -> Turn {
        let (nic, depth, lot) =
            (self.inner_turn(), self.work.tx_depth.into(), self.work.cq_mod.into());
        if nic.limit == Limit::PsnWindow && self.counts_packets() {
            return self.queue_turn_by_packets(&nic);
        }
        let program_ns = self.trip_ns() + self.nic.program_turn_ns() + self.message.busy_ns;
        let turn = |waits: u64| {
            let window = Window::with_waits(depth, lot, nic.messages as u64, waits);
            Turn {
                limit: Limit::QueueDepth,
                window: depth as f64,
                lot: lot as f64,
                messages: window.per_turn as f64,
                ns: program_ns
                    + waits as f64 * nic.ns
                    + (window.position - 1) as f64 * self.step_ns(),
                rounds: (waits + 1) as f64,
                ends_silently: waits == 0
                    && window.per_turn == window.position
                    && window.per_turn == lot,
            }
        };
        // The program never waits for a NIC that takes the whole queue.
        let waits_max = if nic.messages >= depth as f64 { 1 } else { lot.min(WAITS_MAX) };
        (1..waits_max)
            .map(turn)
            .fold(turn(0), |least, turn| if slower(&turn, &least).is_lt() { turn } else { least })
    }

    /// The same above a packet window, which may hold parts of messages. Only messages that end a
    /// lot matter, each by the time between the first packet that the previous lot released and its
    /// own last packet.
    fn queue_turn_by_packets(&self, nic: &Turn) -> Turn {
        let (depth, lot) = (u64::from(self.work.tx_depth), u64::from(self.work.cq_mod));
        let program_ns = self.trip_ns() + self.nic.program_turn_ns();
        let (packets, post_ns) = (self.message.packets as u64, self.nic.post_ns as f64);
        let answer_ns = self.trip_ns() + self.nic.turn_ns();
        let packet_ns = self.message.busy_ns / self.message.packets;
        let turn = |messages: u64, last_ns: f64| {
            let let_go = messages - (depth - lot);
            let ns = program_ns + last_ns.max(let_go as f64 * post_ns);
            Turn {
                limit: Limit::QueueDepth,
                window: depth as f64,
                lot: lot as f64,
                messages: messages as f64,
                ns,
                rounds: (ns / nic.ns).round().max(1.0),
                ends_silently: let_go == lot && messages == lot,
            }
        };
        // The part that is not played.
        let first = (depth - lot + 1).next_multiple_of(lot);
        let unplayed = turn(first, (first - (depth - lot)) as f64 * nic.ns / nic.messages);
        self.acknowledged()
            .departures(self.nic.outstanding_psns.into(), packet_ns, answer_ns)
            .filter(|(packet, _)| packet % packets == 0)
            .map(|(packet, left_ns)| (packet / packets + depth - lot, left_ns))
            .filter(|(messages, _)| messages.is_multiple_of(lot))
            .map(|(messages, left_ns)| turn(messages, left_ns))
            .reduce(|least, turn| if slower(&turn, &least).is_lt() { turn } else { least })
            .unwrap_or(unplayed)
    }

    /// Returns the narrower of the NIC's windows.
    fn inner_turn(&self) -> Turn {
        let (messages, packets) = (self.nic_turn(), self.psn_turn());
        if packets.messages < messages.messages { packets } else { messages }
    }

    fn nic_turn(&self) -> Turn {
        let is_answered = self.work.op.is_answered();
        let messages = self.nic.outstanding(is_answered);
        let is_reads = is_answered && self.nic.outstanding_reads <= self.nic.outstanding_wqes;
        Turn {
            limit: if is_reads { Limit::OutstandingReads } else { Limit::OutstandingWqes },
            window: messages as f64,
            lot: 1.0,
            messages: messages as f64,
            ns: self.trip_ns() + self.nic.turn_ns() + self.message.busy_ns,
            rounds: 1.0,
            ends_silently: messages == 1,
        }
    }

    fn psn_turn(&self) -> Turn {
        *self.psn.get_or_init(|| self.reckoned_psn_turn())
    }

    /// The packet window. Requests with payload are released in lots that end with a message or
    /// with a requested or unrequested acknowledgement; READs as in [`window::of_reads`].
    fn reckoned_psn_turn(&self) -> Turn {
        let packets = self.message.packets;
        let psns = u64::from(self.nic.outstanding_psns);
        let packet_ns = self.message.busy_ns / packets;
        let answer_ns = self.trip_ns() + self.nic.turn_ns();
        if self.work.op.is_answered() {
            let (messages, packet) = window::of_reads(psns, packets as u64);
            return Turn {
                limit: Limit::PsnWindow,
                window: messages as f64,
                lot: 1.0,
                messages: messages as f64,
                ns: answer_ns + packet as f64 * packet_ns,
                rounds: 1.0,
                ends_silently: false,
            };
        }
        let acknowledged = self.acknowledged();
        let (per_turn, ns) = acknowledged.turn(psns, packet_ns, answer_ns);
        let first = acknowledged.first() as f64 / packets;
        Turn {
            limit: Limit::PsnWindow,
            window: psns as f64 / packets,
            lot: if first < 1.0 { per_turn / packets } else { 1.0 },
            messages: per_turn / packets,
            ns,
            rounds: 1.0,
            ends_silently: psns == 1,
        }
    }

    /// The acknowledged packets of requests with payload.
    fn acknowledged(&self) -> Acknowledged {
        let nic = self.nic;
        Acknowledged {
            asked_every: nic.ack_request_every.min(nic.outstanding_psns).into(),
            every: nic.ack_every.into(),
            packets: self.message.packets as u64,
        }
    }

    /// Every limit alone, the lowest first.
    fn bounds(&self, turns: &[Turn]) -> Vec<Bound> {
        let (bits, message) = (self.bits(), &self.message);
        let mut bounds =
            vec![Bound { limit: Limit::LineRate, goodput_bps: bits / message.wire_ns * 1e9 }];
        let mut costs = |limit, ns: f64| {
            if ns > 0.0 {
                bounds.push(Bound { limit, goodput_bps: bits / ns * 1e9 });
            }
        };
        costs(Limit::PacketRate, message.packets * self.nic.packet_ns as f64);
        costs(Limit::MessageRate, self.nic.message_ns as f64);
        let polling = self.nic.poll_ns as f64 / f64::from(self.work.cq_mod);
        costs(Limit::Program, self.nic.post_ns as f64 + polling);
        bounds.extend(turns.iter().map(|turn| Bound {
            limit: turn.limit,
            goodput_bps: self.qps * turn.messages * bits / turn.ns * 1e9,
        }));
        bounds.sort_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps));
        bounds
    }

    /// Go-back-N: a lost packet costs everything that its queue pair sends until it learns of the
    /// gap, one round trip after the next packet.
    fn loss_factor(&self, goodput_bps: f64) -> f64 {
        let packets_per_ns = goodput_bps / self.bits() * self.message.packets / 1e9 / self.qps;
        let known_ns =
            self.path.rtt_ns() + self.nic.turn_ns() + self.message.busy_ns / self.message.packets;
        1.0 / (1.0 + self.path.loss * packets_per_ns * known_ns)
    }

    /// Only the timer detects the loss of a last packet.
    fn idle_factor(&self, turn: Option<&Turn>) -> f64 {
        let Some(turn) = turn.filter(|turn| turn.ends_silently) else { return 1.0 };
        let Some(timeout_ns) = timeout_ns(self.nic) else { return 1.0 };
        turn.ns / (turn.ns + self.path.loss * timeout_ns)
    }

    /// Goodput of a finite run, from the first message to the last completion. Loss stretches all
    /// of it except the delivery of the last message.
    fn with_ends(&self, endless: f64, turn: Option<&Turn>, loss_factor: f64) -> f64 {
        let Some(iterations) = self.work.iterations else { return endless * loss_factor };
        let all_bits = self.bits() * iterations as f64 * self.qps;
        let way = self.trip_ns() + self.nic.program_turn_ns();
        let busy_ns = match (self.played_ns(iterations, endless, turn), turn) {
            (Some(ns), _) => ns - way,
            (None, Some(turn)) => self.begun_in_turn_ns(turn, iterations as f64),
            (None, None) => all_bits / endless * 1e9,
        };
        all_bits / (busy_ns / loss_factor + way) * 1e9
    }

    /// Duration of a run by playing it, because the goodput of a short run depends on how soon the
    /// lots of its queue pairs drift apart on the line. Of a long run, whole turns are skipped at
    /// their steady-state duration. `None`: too long to play.
    fn played_ns(&self, iterations: u64, endless: f64, turn: Option<&Turn>) -> Option<f64> {
        if self.counts_packets() {
            return self.played_by_packets_ns(iterations);
        }
        let most = Run::PLAYED_MAX / u64::from(self.work.qps);
        let per_turn =
            turn.map_or(f64::from(self.work.cq_mod), |turn| turn.messages.max(1.0)) as u64;
        let turns = iterations.saturating_sub(most).div_ceil(per_turn);
        let played = iterations.checked_sub(turns * per_turn).filter(|&played| played > 0)?;
        if turns > 0 && played < PLAYED_QUEUES * u64::from(self.work.tx_depth) {
            return None;
        }
        let pieces = (most / played).clamp(1, self.message.packets as u64);
        let left_out = (turns * per_turn) as f64 * self.qps * self.bits() / endless * 1e9;
        Some(self.run(played, pieces).ns() + left_out)
    }

    /// Returns whether requests wait for acknowledgements of packets, so that a window may hold
    /// parts of messages.
    fn counts_packets(&self) -> bool {
        let queued = u64::from(self.work.tx_depth).min(self.nic.outstanding_wqes.into()) as f64;
        !self.work.op.is_answered()
            && queued * self.message.packets > f64::from(self.nic.outstanding_psns)
    }

    /// Plays a run packet by packet. The skipped part of a long run takes the rate of the second
    /// half of the played part.
    fn played_by_packets_ns(&self, iterations: u64) -> Option<f64> {
        let (lot, packets) = (u64::from(self.work.cq_mod), self.message.packets as u64);
        let most = Run::PACKETS_PLAYED_MAX / u64::from(self.work.qps) / packets;
        if iterations <= most {
            return Some(self.run(iterations, packets).ns());
        }
        // Both halves are whole lots, and longer than the transient of the queue or the window.
        let half = most / 2 / lot * lot;
        let window = u64::from(self.nic.outstanding_psns).div_ceil(packets);
        if half < lot + window.min(self.work.tx_depth.into()) {
            return None;
        }
        let [first_ns, both_ns] = [half, 2 * half].map(|messages| self.run(messages, packets).ns());
        Some(both_ns + (both_ns - first_ns) / half as f64 * (iterations - 2 * half) as f64)
    }

    /// The run of the first `messages` of each queue pair, each in `pieces` pieces.
    fn run(&self, messages: u64, pieces: u64) -> Run {
        let (work, nic) = (self.work, self.nic);
        let (mut room, mut opens) = self.room();
        if room >= u64::from(work.tx_depth) {
            // The program waits before the NIC does.
            (room, opens) = (work.tx_depth.into(), self.message.packets as u64);
        }
        let window =
            self.counts_packets().then(|| (nic.outstanding_psns.into(), self.acknowledged()));
        Run {
            qps: work.qps as usize,
            messages,
            depth: work.tx_depth.into(),
            lot: work.cq_mod.into(),
            room,
            window,
            post_ns: nic.post_ns as f64,
            poll_ns: nic.poll_ns as f64,
            doorbell_ns: nic.doorbell_ns as f64,
            message_ns: nic.message_ns as f64,
            request_ns: if work.op.is_answered() { nic.packet_ns as f64 } else { 0.0 },
            pieces,
            opens: (opens * pieces).div_ceil(self.message.packets as u64),
            nic_ns: self.message.packets * nic.packet_ns as f64,
            ahead_ns: PORT_BYTES * 8e9 / wire::rate_bps(self.path, nic),
            line_ns: self.message.wire_ns,
            answer_ns: self.trip_ns() + nic.turn_ns(),
            completion_ns: nic.completion_ns as f64,
        }
    }

    /// The NIC's limit of outstanding messages of a queue pair, and the packet of a message whose
    /// acknowledgement or response lets another begin.
    fn room(&self) -> (u64, u64) {
        let (turn, last) = (self.inner_turn(), self.message.packets as u64);
        if self.work.op.is_answered() && turn.limit == Limit::PsnWindow {
            window::of_reads(self.nic.outstanding_psns.into(), last)
        } else {
            (self.nic.outstanding(self.work.op.is_answered()), last)
        }
    }

    /// Time until the last message of a run has left, by windows. The program fills one queue after
    /// the other; the last queue then still has its own turns.
    fn begun_in_turn_ns(&self, turn: &Turn, messages: f64) -> f64 {
        let step_ns = self.step_ns();
        // Waits for the NIC take about as long as turns of the NIC.
        let nic = self.inner_turn();
        let (turn, longer) = match turn.rounds {
            1.0 => (turn, 1.0),
            _ => (&nic, turn.ns / turn.messages * nic.messages / nic.ns),
        };
        let last_ns =
            (self.qps - 1.0) * messages.min(self.work.tx_depth.into()) * self.nic.post_ns as f64;
        let together_ns = longer * self.windows_ns(turn, messages, self.qps * step_ns);
        together_ns.max(last_ns + longer * self.windows_ns(turn, messages, step_ns))
    }

    /// Time until the last of `messages` has left, one every `each` ns: the lots that must be
    /// released first, and the messages behind them.
    fn windows_ns(&self, turn: &Turn, messages: f64, each: f64) -> f64 {
        let beyond = messages - turn.window;
        if beyond <= 0.0 {
            return messages * each;
        }
        let lots = (beyond / turn.lot).ceil();
        let per_turn = (turn.messages / turn.lot).round();
        // The first window's lots are released one after the other, and each again a turn later.
        let turns = ((lots - 1.0) / per_turn).floor();
        let in_turn = lots - turns * per_turn;
        let first = self.trip_ns() + self.nic.turn_ns() + in_turn * turn.lot * each;
        first + turns * turn.ns + (beyond - (lots - 1.0) * turn.lot) * each
    }

    /// `true` if all retries are exhausted before a response can arrive.
    fn dies(&self) -> bool {
        patience_ns(self.nic).is_some_and(|patience| patience < self.trip_ns() + self.nic.turn_ns())
    }

    fn latency_ns(&self) -> f64 {
        let nic = self.nic;
        let begin = (nic.post_ns + nic.doorbell_ns) as f64;
        let one_way = self.path.one_way_ns;
        let there = begin + one_way + nic.responder_ns as f64;
        let seen = (nic.completion_ns + nic.poll_ns) as f64;
        if self.work.op.is_answered() {
            let request = self.trip_ns() - self.path.rtt_ns();
            return there
                + request
                + self.message.busy_ns
                + one_way
                + nic.responder_ns as f64
                + seen;
        }
        there + self.sending_ns() + seen
    }

    /// Time for one message to leave, including waits for the packet window.
    fn sending_ns(&self) -> f64 {
        let (packets, busy_ns) = (self.message.packets, self.message.busy_ns);
        let over = packets - f64::from(self.nic.outstanding_psns);
        if over <= 0.0 {
            return busy_ns;
        }
        let turn = self.psn_turn();
        let per_turn = turn.messages * packets;
        let turns = (over / per_turn).ceil();
        let rest = over - (turns - 1.0) * per_turn;
        busy_ns.max(turns * turn.ns + rest * busy_ns / packets)
    }
}
