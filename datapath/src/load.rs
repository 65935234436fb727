//! Requesters and responders of one load.

use crate::meter::Ticks;
use crate::packets::{ACK_LEN, Acks, FLOWS_MAX, PAYLOAD_MAX, Says, Writes, aeth};
use hdrhistogram::Histogram;
use longhaul_port::{Port, PortError};
use longhaul_units::{Duration, Instant, Psn};
use std::collections::VecDeque;
use std::fmt;
use thiserror::Error;

/// Frames that are taken from a port at once.
const RECEIVE_BATCH: usize = 256;
/// Of so many frames that arrive, one has its ICRC checked.
const CHECK_EVERY: u64 = 1024;
/// Packets whose times are taken, in flight at once.
const SAMPLES: usize = 64;
/// Packets sent between two that are looked at for a free sample.
const SAMPLE_EVERY: u64 = 61;
/// No sample.
const NONE: u8 = u8::MAX;

/// What a load is like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadConfig {
    /// Queue pairs, which take turns: 1 to [`FLOWS_MAX`].
    pub flows: u32,
    /// Packets that one sends before it is the next one's turn, as a NIC's scheduler has it: 1 to
    /// 128.
    pub in_a_row: u32,
    /// Payload of each packet, a WRITE of its own, in bytes: 1 to [`PAYLOAD_MAX`].
    pub payload_bytes: usize,
    /// Each so many packets of a flow one asks for an acknowledgement: 1 to 128.
    pub ack_every: u32,
    /// Packets of a flow that may be unacknowledged: `ack_every` to 2^22.
    pub depth: u32,
    /// Packets of all flows that may be between the two ends: as many as the rings between them
    /// hold, where something there drops what finds no room. `burst` at least.
    pub in_flight: u64,
    /// Packets that leave at once: 1 to 1024.
    pub burst: usize,
    /// How long the responders' acknowledgements take: the round trip of a long path.
    pub ack_delay: Duration,
}

impl LoadConfig {
    /// 64 flows, each 128 packets deep, that take turns after 16 packets, of which the last asks
    /// for an acknowledgement; bursts of 64.
    pub fn new(payload_bytes: usize) -> Self {
        LoadConfig {
            flows: 64,
            in_a_row: 16,
            payload_bytes,
            ack_every: 16,
            depth: 128,
            in_flight: u64::MAX,
            burst: 64,
            ack_delay: Duration::ZERO,
        }
    }

    /// Holds every field against its range.
    ///
    /// # Errors
    /// The first that lies outside.
    pub fn check(&self) -> Result<(), LoadError> {
        let fields = [
            ("flows", u64::from(self.flows), 1, u64::from(FLOWS_MAX)),
            ("in_a_row", u64::from(self.in_a_row), 1, 128),
            ("payload_bytes", self.payload_bytes as u64, 1, PAYLOAD_MAX as u64),
            ("ack_every", u64::from(self.ack_every), 1, 128),
            ("depth", u64::from(self.depth), u64::from(self.ack_every), 1 << 22),
            ("burst", self.burst as u64, 1, 1024),
            ("in_flight", self.in_flight, self.burst as u64, u64::MAX),
        ];
        match fields.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
            Some((field, value, min, max)) => Err(LoadError { field, value, min, max }),
            None => Ok(()),
        }
    }
}

/// A field of a [`LoadConfig`] outside its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{field} is {value}; it must lie between {min} and {max}")]
pub struct LoadError {
    field: &'static str,
    value: u64,
    min: u64,
    max: u64,
}

/// What a load has done since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadCounters {
    /// Packets sent, those sent again included.
    pub sent: u64,
    /// Packets that arrived at the responders in their order.
    pub arrived: u64,
    /// Packets that arrived a second time.
    pub duplicates: u64,
    /// Packets that arrived behind a gap, which the responder does not take.
    pub behind_gaps: u64,
    /// Acknowledgements that responders sent.
    pub acks_sent: u64,
    /// Acknowledgements that came to requesters, pseudo-ACKs among them.
    pub acks_taken: u64,
    /// Requests to go back that came to requesters.
    pub naks_taken: u64,
    /// Refusals that came to requesters: a connection is over.
    pub refusals: u64,
    /// Frames whose ICRC was looked at.
    pub checked: u64,
    /// Of these, those whose ICRC was wrong.
    pub corrupt: u64,
    /// Frames at either end that are none of this load's.
    pub foreign: u64,
}

impl LoadCounters {
    /// What was done after `before`.
    #[must_use]
    pub fn since(&self, before: &LoadCounters) -> LoadCounters {
        LoadCounters {
            sent: self.sent - before.sent,
            arrived: self.arrived - before.arrived,
            duplicates: self.duplicates - before.duplicates,
            behind_gaps: self.behind_gaps - before.behind_gaps,
            acks_sent: self.acks_sent - before.acks_sent,
            acks_taken: self.acks_taken - before.acks_taken,
            naks_taken: self.naks_taken - before.naks_taken,
            refusals: self.refusals - before.refusals,
            checked: self.checked - before.checked,
            corrupt: self.corrupt - before.corrupt,
            foreign: self.foreign - before.foreign,
        }
    }
}

/// All counters that are not zero.
impl fmt::Display for LoadCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (self.sent, "packets sent"),
            (self.arrived, "arrived"),
            (self.duplicates, "duplicates"),
            (self.behind_gaps, "behind gaps"),
            (self.acks_sent, "ACKs sent"),
            (self.acks_taken, "ACKs received"),
            (self.naks_taken, "NAKs received"),
            (self.refusals, "refusals"),
            (self.checked, "ICRCs checked"),
            (self.corrupt, "ICRCs wrong"),
            (self.foreign, "foreign frames"),
        ];
        let mut named = named.into_iter().filter(|(count, _)| *count > 0);
        let Some((count, name)) = named.next() else { return f.write_str("no packets") };
        write!(f, "{count} {name}")?;
        named.try_for_each(|(count, name)| write!(f, ", {count} {name}"))
    }
}

/// One queue pair. Sequence numbers are 64-bit; the wire has their 24 lowest bits.
#[derive(Clone, Copy)]
struct Flow {
    first: u64,
    /// The requester's next, and the first that is not acknowledged to it.
    next: u64,
    acked: u64,
    /// The responder's next.
    expected: u64,
    sample: u8,
    owes_ack: bool,
    asked_back: bool,
}

#[derive(Clone, Copy, Default)]
struct Sample {
    seq: u64,
    sent_at: u64,
    has_arrived: bool,
    is_acked: bool,
}

/// An acknowledgement on its way.
#[derive(Clone, Copy)]
struct Owed {
    due: Instant,
    flow: u32,
    psn: Psn,
    messages: u64,
    goes_back: bool,
}

/// Requesters and responders.
pub struct Load {
    config: LoadConfig,
    writes: Writes,
    acks: Acks,
    flows: Vec<Flow>,
    /// Whose turn it is, and how many packets of the turn are left.
    cursor: u32,
    left: u32,
    /// Packets between the two ends.
    in_flight: u64,
    /// How many packets each flow may have sent in all, while pairing.
    quota: u64,
    /// Packets that may still be sent.
    allowance: u64,
    owing: Vec<u32>,
    owed: VecDeque<Owed>,
    samples: Vec<Sample>,
    free_samples: Vec<u8>,
    until_sample: u64,
    ticks: Ticks,
    one_way: Histogram<u64>,
    acknowledged: Histogram<u64>,
    counters: LoadCounters,
}

impl Load {
    /// A load that has sent nothing. Flows' PSNs are as far apart as there is room, so that an
    /// acknowledgement fits one flow alone.
    ///
    /// # Errors
    /// A field is outside its range.
    pub fn new(config: LoadConfig) -> Result<Self, LoadError> {
        config.check()?;
        let spacing = (1_u64 << 24) / u64::from(config.flows);
        let flow = |first| Flow {
            first,
            next: first,
            acked: first,
            expected: first,
            sample: NONE,
            owes_ack: false,
            asked_back: false,
        };
        // Behind the first wrap, so that no number lies before zero.
        let flows: Vec<Flow> =
            (0..config.flows).map(|i| flow((1 << 24) + u64::from(i) * spacing)).collect();
        let histogram = || Histogram::new_with_bounds(1, 60_000_000_000, 3);
        let (Ok(one_way), Ok(acknowledged)) = (histogram(), histogram()) else {
            unreachable!("bounds that are in order, and three digits");
        };
        Ok(Load {
            writes: Writes::new(config.flows, config.payload_bytes),
            acks: Acks::new(config.flows),
            owing: Vec::with_capacity(flows.len()),
            owed: VecDeque::with_capacity(flows.len().max(4096)),
            flows,
            cursor: 0,
            left: config.in_a_row,
            in_flight: 0,
            quota: u64::MAX,
            allowance: u64::MAX,
            samples: vec![Sample::default(); SAMPLES],
            free_samples: (0..SAMPLES as u8).collect(),
            until_sample: SAMPLE_EVERY,
            ticks: Ticks::new(),
            one_way,
            acknowledged,
            counters: LoadCounters::default(),
            config,
        })
    }

    /// The configuration in effect.
    pub fn config(&self) -> &LoadConfig {
        &self.config
    }

    /// Length of each request's frame in bytes, without FCS.
    pub fn frame_len(&self) -> usize {
        self.writes.frame_len()
    }

    /// What has been done.
    pub fn counters(&self) -> LoadCounters {
        self.counters
    }

    /// From a requester's port to a responder's, in nanoseconds, of a part of the packets.
    pub fn one_way(&self) -> &Histogram<u64> {
        &self.one_way
    }

    /// From a requester's port to the acknowledgement there, in nanoseconds, of a part of the
    /// packets.
    pub fn acknowledged(&self) -> &Histogram<u64> {
        &self.acknowledged
    }

    /// Forgets the times taken so far.
    pub fn forget_times(&mut self) {
        self.one_way.reset();
        self.acknowledged.reset();
    }

    /// Lets each flow send so many packets in all, each of which asks for an acknowledgement;
    /// `None`: as many as it may.
    pub fn set_quota(&mut self, packets: Option<u64>) {
        self.quota = packets.unwrap_or(u64::MAX);
    }

    /// Lets all flows together send `packets` more; `u64::MAX`: as many as they may.
    pub fn set_allowance(&mut self, packets: u64) {
        self.allowance = packets;
    }

    /// Packets of the flow that has sent the most, those sent again not counted.
    pub fn longest_flow(&self) -> u64 {
        self.flows.iter().map(|flow| flow.next - flow.first).max().unwrap_or(0)
    }

    /// Sends again all that is not acknowledged, as a requester does whose timer has run out.
    pub fn repeat(&mut self) {
        self.flows.iter_mut().for_each(|flow| flow.next = flow.acked);
        self.in_flight = 0;
    }

    /// How long acknowledgements take from here on.
    pub fn set_ack_delay(&mut self, delay: Duration) {
        self.config.ack_delay = delay;
    }

    /// True when every packet sent has arrived, and every request for an acknowledgement was
    /// answered.
    pub fn is_quiet(&self) -> bool {
        self.owed.is_empty() && self.flows.iter().all(|flow| flow.next == flow.expected)
    }

    /// True when each flow's quota is acknowledged.
    pub fn is_paired(&self) -> bool {
        self.unpaired() == 0
    }

    /// Flows whose quota is not.
    pub fn unpaired(&self) -> usize {
        self.flows.iter().filter(|flow| flow.acked - flow.first < self.quota).count()
    }

    /// Packets sent that have not arrived.
    pub fn missing(&self) -> u64 {
        self.flows.iter().map(|flow| flow.next.saturating_sub(flow.expected)).sum()
    }

    /// Sends a burst, as far as there is room and flows may send; how many packets.
    ///
    /// # Errors
    /// The port's.
    pub fn send(&mut self, port: &mut impl Port) -> Result<usize, PortError> {
        let may = (self.config.in_flight - self.in_flight).min(self.allowance);
        let may = usize::try_from(may).unwrap_or(usize::MAX);
        let room = port.transmit_room().min(self.config.burst).min(may);
        let flows = self.config.flows as usize;
        let len = self.writes.frame_len();
        // Flows that may not send are passed over, and looked at again in the next burst.
        let mut looks = room + flows.min(256);
        let mut sent = 0;
        while sent < room && looks > 0 {
            looks -= 1;
            let number = self.cursor;
            let flow = &mut self.flows[number as usize];
            let seq = flow.next;
            if seq - flow.acked >= u64::from(self.config.depth) || seq - flow.first >= self.quota {
                self.next_turn();
                continue;
            }
            let count = seq - flow.first + 1;
            let wants_ack =
                self.quota != u64::MAX || count.is_multiple_of(u64::from(self.config.ack_every));
            let writes = &self.writes;
            let took = port.transmit(len, &mut |out| {
                writes.write(number, Psn::from_sequence(seq), wants_ack, out);
            })?;
            if !took {
                break;
            }
            flow.next += 1;
            sent += 1;
            self.sample(number, seq);
            self.left -= 1;
            if self.left == 0 {
                self.next_turn();
            }
        }
        self.counters.sent += sent as u64;
        self.in_flight += sent as u64;
        if self.allowance != u64::MAX {
            self.allowance -= sent as u64;
        }
        if sent > 0 {
            port.flush()?;
        }
        Ok(sent)
    }

    fn next_turn(&mut self) {
        self.cursor = if self.cursor + 1 == self.config.flows { 0 } else { self.cursor + 1 };
        self.left = self.config.in_a_row;
    }

    /// Takes the time of a packet, if it is one's turn and a sample is free.
    #[inline]
    fn sample(&mut self, number: u32, seq: u64) {
        self.until_sample -= 1;
        if self.until_sample > 0 {
            return;
        }
        self.until_sample = SAMPLE_EVERY;
        let flow = &mut self.flows[number as usize];
        if flow.sample == NONE
            && let Some(free) = self.free_samples.pop()
        {
            flow.sample = free;
            let sent_at = self.ticks.now();
            self.samples[usize::from(free)] = Sample { seq, sent_at, ..Sample::default() };
        }
    }

    /// Receives what came to the responders, and sends the acknowledgements that are due; how many
    /// frames either way.
    ///
    /// # Errors
    /// The port's.
    pub fn respond(&mut self, port: &mut impl Port, now: Instant) -> Result<usize, PortError> {
        let received = port.receive(RECEIVE_BATCH, &mut |frame| self.arrive(frame))?;
        let due = now + self.config.ack_delay;
        for number in self.owing.drain(..) {
            let flow = &mut self.flows[number as usize];
            flow.owes_ack = false;
            let messages = flow.expected - flow.first;
            let psn = Psn::from_sequence(flow.expected - 1);
            self.owed.push_back(Owed { due, flow: number, psn, messages, goes_back: false });
        }
        let mut sent = 0;
        while let Some(owed) = self.owed.front().copied().filter(|owed| owed.due <= now) {
            let acks = &self.acks;
            let took = port.transmit(ACK_LEN, &mut |out| {
                acks.write(owed.flow, owed.psn, aeth(owed.messages, owed.goes_back), out);
            })?;
            if !took {
                break;
            }
            sent += 1;
            self.owed.pop_front();
        }
        self.counters.acks_sent += sent as u64;
        if sent > 0 {
            port.flush()?;
        }
        Ok(received + sent)
    }

    #[inline]
    fn arrive(&mut self, frame: &[u8]) {
        let Some(request) = self.writes.read(frame) else {
            self.counters.foreign += 1;
            return;
        };
        let flow = &mut self.flows[request.flow as usize];
        let seq = request.psn.unwrap_near(flow.expected).unwrap_or(0);
        if seq != flow.expected {
            return self.arrive_out_of_order(request.flow, seq, request.wants_ack);
        }
        flow.expected += 1;
        flow.asked_back = false;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.counters.arrived += 1;
        if request.wants_ack && !flow.owes_ack {
            flow.owes_ack = true;
            self.owing.push(request.flow);
        }
        if flow.sample != NONE {
            let at = flow.sample;
            self.note_arrival(request.flow, at, seq);
        }
        if self.counters.arrived.is_multiple_of(CHECK_EVERY) {
            self.counters.checked += 1;
            self.counters.corrupt += u64::from(!Writes::is_intact(frame));
        }
    }

    #[cold]
    fn arrive_out_of_order(&mut self, number: u32, seq: u64, wants_ack: bool) {
        let flow = &mut self.flows[number as usize];
        if seq < flow.expected {
            self.counters.duplicates += 1;
            if wants_ack && !flow.owes_ack {
                flow.owes_ack = true;
                self.owing.push(number);
            }
            return;
        }
        self.counters.behind_gaps += 1;
        if !flow.asked_back {
            flow.asked_back = true;
            let owed = Owed {
                due: Instant::ZERO,
                flow: number,
                psn: Psn::from_sequence(flow.expected),
                messages: flow.expected - flow.first,
                goes_back: true,
            };
            // Ahead of acknowledgements that are not due.
            self.owed.push_front(owed);
        }
    }

    fn note_arrival(&mut self, number: u32, at: u8, seq: u64) {
        let sample = &mut self.samples[usize::from(at)];
        if sample.seq != seq || sample.has_arrived {
            return;
        }
        sample.has_arrived = true;
        let ns = self.ticks.ns_since(sample.sent_at);
        self.one_way.saturating_record(ns);
        self.give_back(number, at);
    }

    fn note_acknowledged(&mut self, number: u32, at: u8, acked: u64) {
        let sample = &mut self.samples[usize::from(at)];
        if acked <= sample.seq || sample.is_acked {
            return;
        }
        sample.is_acked = true;
        let ns = self.ticks.ns_since(sample.sent_at);
        self.acknowledged.saturating_record(ns);
        self.give_back(number, at);
    }

    fn give_back(&mut self, number: u32, at: u8) {
        let sample = self.samples[usize::from(at)];
        if sample.has_arrived && sample.is_acked {
            self.flows[number as usize].sample = NONE;
            self.free_samples.push(at);
        }
    }

    /// Receives the acknowledgements that came to the requesters; how many frames.
    ///
    /// # Errors
    /// The port's.
    pub fn take_acks(&mut self, port: &mut impl Port) -> Result<usize, PortError> {
        port.receive(RECEIVE_BATCH, &mut |frame| self.take_ack(frame))
    }

    #[inline]
    fn take_ack(&mut self, frame: &[u8]) {
        let Some(answer) = self.acks.read(frame) else {
            self.counters.foreign += 1;
            return;
        };
        let flow = &mut self.flows[answer.flow as usize];
        let Some(seq) = answer.psn.unwrap_near(flow.acked) else { return };
        match answer.says {
            Says::Arrived => {
                self.counters.acks_taken += 1;
                // None is ahead of what was sent; who claims so is not believed.
                flow.acked = flow.acked.max((seq + 1).min(flow.next));
            }
            Says::GoBack => {
                self.counters.naks_taken += 1;
                flow.acked = flow.acked.max(seq.min(flow.next));
                flow.next = flow.acked;
                // What was lost is not in flight, and what comes a second time has been counted.
                self.in_flight = self.missing().min(self.config.in_flight);
            }
            Says::Over => self.counters.refusals += 1,
        }
        let Flow { sample, acked, .. } = self.flows[answer.flow as usize];
        if sample != NONE {
            self.note_acknowledged(answer.flow, sample, acked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_port::loopback;

    fn load(flows: u32) -> Load {
        Load::new(LoadConfig { flows, ..LoadConfig::new(100) }).unwrap()
    }

    #[test]
    fn counters_are_told_unless_zero() {
        assert_eq!(LoadCounters::default().to_string(), "no packets");
        let counters = LoadCounters { sent: 12, acks_taken: 3, ..LoadCounters::default() };
        assert_eq!(counters.to_string(), "12 packets sent, 3 ACKs received");
    }

    #[test]
    fn fields_outside_their_ranges_are_refused_by_name() {
        let fine = LoadConfig::new(512);
        for (config, field) in [
            (LoadConfig { flows: 0, ..fine }, "flows"),
            (LoadConfig { payload_bytes: 4097, ..fine }, "payload_bytes"),
            (LoadConfig { ack_every: 0, ..fine }, "ack_every"),
            (LoadConfig { depth: 8, ..fine }, "depth"),
            (LoadConfig { burst: 0, ..fine }, "burst"),
            (LoadConfig { in_flight: 63, ..fine }, "in_flight"),
        ] {
            let refusal = config.check().unwrap_err().to_string();
            assert!(refusal.starts_with(field), "{refusal}");
        }
        assert_eq!(fine.check(), Ok(()));
    }

    #[test]
    fn what_is_sent_arrives_in_order_and_is_acknowledged() {
        let (mut near, mut far) = loopback::pair("test", 256, 4352).unwrap();
        let mut load = load(7);
        for _ in 0..100 {
            load.send(&mut near).unwrap();
            load.respond(&mut far, Instant::ZERO).unwrap();
            load.take_acks(&mut near).unwrap();
        }
        let counters = load.counters();
        assert!(counters.arrived > 3000, "{counters:?}");
        assert_eq!(counters.sent, counters.arrived);
        assert_eq!(counters.acks_sent, counters.acks_taken);
        assert_eq!((counters.behind_gaps, counters.corrupt, counters.foreign), (0, 0, 0));
        assert!(counters.checked >= 3 && load.is_quiet() && load.missing() == 0);
        assert!(load.one_way().len() > 40 && load.acknowledged().len() > 10);
    }

    #[test]
    fn a_flow_without_acknowledgements_stops_at_its_depth() {
        let (mut near, mut far) = loopback::pair("test", 256, 4352).unwrap();
        let mut load = load(1);
        load.set_ack_delay(Duration::from_ms(5));
        for _ in 0..10 {
            load.send(&mut near).unwrap();
            load.respond(&mut far, Instant::ZERO).unwrap();
            load.take_acks(&mut near).unwrap();
        }
        assert_eq!((load.counters().sent, load.counters().acks_sent), (128, 0));
        load.respond(&mut far, Instant::ZERO + Duration::from_ms(5)).unwrap();
        load.take_acks(&mut near).unwrap();
        assert!(load.send(&mut near).unwrap() > 0);
    }

    #[test]
    fn flows_take_turns_after_so_many_packets() {
        let (mut near, mut far) = loopback::pair("test", 256, 4352).unwrap();
        let config = LoadConfig { flows: 3, in_a_row: 4, ack_every: 4, ..LoadConfig::new(64) };
        let mut load = Load::new(config).unwrap();
        load.send(&mut near).unwrap();
        let mut seen = Vec::new();
        let writes = Writes::new(3, 64);
        far.receive(13, &mut |frame| {
            seen.extend(writes.read(frame).map(|r| (r.flow, r.wants_ack)))
        })
        .unwrap();
        let flows = seen.iter().map(|(flow, _)| *flow).collect::<Vec<_>>();
        assert_eq!(flows, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0]);
        assert!(
            seen.iter().enumerate().all(|(at, (_, wants))| *wants == (at % 4 == 3)),
            "{seen:?}"
        );
    }

    #[test]
    fn what_was_lost_without_a_trace_is_repeated() {
        let (mut near, mut far) = loopback::pair("test", 256, 4352).unwrap();
        let mut load = load(2);
        load.set_quota(Some(1));
        load.send(&mut near).unwrap();
        far.receive(64, &mut |_| {}).unwrap();
        assert_eq!((load.send(&mut near).unwrap(), load.is_paired()), (0, false));
        load.repeat();
        assert_eq!(load.send(&mut near).unwrap(), 2);
        load.respond(&mut far, Instant::ZERO).unwrap();
        load.take_acks(&mut near).unwrap();
        assert!(load.is_paired());
    }

    #[test]
    fn no_more_is_under_way_than_may_be() {
        let (mut near, mut far) = loopback::pair("test", 256, 4352).unwrap();
        let mut load = Load::new(LoadConfig { in_flight: 70, ..LoadConfig::new(64) }).unwrap();
        assert_eq!([0; 3].map(|_| load.send(&mut near).unwrap()), [64, 6, 0]);
        load.respond(&mut far, Instant::ZERO).unwrap();
        assert_eq!(load.send(&mut near).unwrap(), 64);
    }

    #[test]
    fn a_packet_that_is_lost_is_gone_back_for() {
        let (mut near, mut far) = loopback::pair("test", 256, 4352).unwrap();
        let mut load = load(3);
        load.send(&mut near).unwrap();
        // The first flow loses its first packet.
        let mut skipped = 0;
        far.receive(1, &mut |_| skipped += 1).unwrap();
        assert_eq!(skipped, 1);
        for _ in 0..20 {
            load.respond(&mut far, Instant::ZERO).unwrap();
            load.take_acks(&mut near).unwrap();
            load.send(&mut near).unwrap();
        }
        load.respond(&mut far, Instant::ZERO).unwrap();
        let counters = load.counters();
        assert_eq!(counters.naks_taken, 1);
        assert!(counters.behind_gaps > 0 && load.missing() == 0, "{counters:?}");
    }

    #[test]
    fn a_quota_is_sent_and_each_packet_acknowledged() {
        let (mut near, mut far) = loopback::pair("test", 256, 4352).unwrap();
        let mut load = load(50);
        load.set_quota(Some(2));
        for _ in 0..10 {
            load.send(&mut near).unwrap();
            load.respond(&mut far, Instant::ZERO).unwrap();
            load.take_acks(&mut near).unwrap();
        }
        assert!(load.is_paired());
        assert_eq!(load.counters().arrived, 100);
    }

    #[test]
    fn what_is_not_of_this_load_is_counted() {
        let (mut near, mut far) = loopback::pair("test", 16, 4352).unwrap();
        let mut load = load(1);
        near.transmit(60, &mut |out| out.fill(0xff)).unwrap();
        near.flush().unwrap();
        far.transmit(60, &mut |out| out.fill(0x11)).unwrap();
        far.flush().unwrap();
        load.respond(&mut far, Instant::ZERO).unwrap();
        load.take_acks(&mut near).unwrap();
        assert_eq!(load.counters().foreign, 2);
    }
}
