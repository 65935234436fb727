//! An end of RC queue pairs over a port: the software RNIC as programs use it, with a meter around
//! it.

use crate::meter::Ticks;
use crate::watch::{PartTicks, Region, Watch, Watched, WorkPart};
use hdrhistogram::Histogram;
use longhaul_host::{Clock, TurnConfig, turn};
use longhaul_port::{LinkState, Port, PortError};
use longhaul_rnic::{
    Access, BringUp, Completion, Config, Counter, CqId, Event, MrKeys, Mtu, QpEvent, QpInit,
    QpKind, RecvWr, Rnic, SendOp, SendWr, Sge, Status,
};
use longhaul_units::{Qpn, RKey};
use longhaul_wire::MacAddr;
use std::net::IpAddr;
use std::sync::Arc;
use thiserror::Error;

/// Most bytes of registered memory at an end.
pub const MEMORY_MAX: u64 = 1 << 30;
/// Most queue pairs.
pub const QPS_MAX: u32 = 1024;
/// Most messages in flight on a queue pair.
const DEPTH_MAX: u32 = 1024;
/// Most outstanding READs of a queue pair.
const READS_MAX: u32 = 128;
/// Local ACK timeout by its code: 0.54 s, more than a process waits for its turn on a busy machine.
const TIMEOUT_CODE: u8 = 17;
/// Completions taken at once, as programs do.
const POLL_BATCH: usize = 16;

/// What requesters do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// SEND.
    Send,
    /// RDMA READ: the payload comes from the responder.
    Read,
}

impl Operation {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Send => "send",
            Operation::Read => "read",
        }
    }
}

/// What goes between two ends. Both are given the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferConfig {
    /// What requesters do.
    pub operation: Operation,
    /// Length of each message in bytes, 1 to 2^30. Each queue pair has one buffer of that length,
    /// which all its messages are of; so much memory for all of them together.
    pub message_bytes: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Queue pairs, 1 to [`QPS_MAX`].
    pub qps: u32,
    /// Messages of a queue pair that are in flight, 1 to 1024; of READs, at most 128.
    pub depth: u32,
    /// Whether to tell what the time goes into ([`End::part_ticks`]), which takes time by itself.
    pub is_instrumented: bool,
}

impl TransferConfig {
    /// Whether an end can be made of it.
    ///
    /// # Errors
    /// The first bound that it breaks.
    pub fn check(&self) -> Result<(), TransferError> {
        let &TransferConfig { message_bytes, qps, depth, .. } = self;
        let depth_max = if self.operation == Operation::Read { READS_MAX } else { DEPTH_MAX };
        if !(1..=QPS_MAX).contains(&qps) {
            return Err(TransferError::QueuePairs(qps));
        }
        if !(1..=depth_max).contains(&depth) {
            return Err(TransferError::Depth { depth, max: depth_max });
        }
        if message_bytes == 0 {
            return Err(TransferError::NoBytes);
        }
        if self.memory_bytes() > MEMORY_MAX {
            return Err(TransferError::Memory { message_bytes, qps });
        }
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        u64::from(self.message_bytes) * u64::from(self.qps)
    }
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Posts the work requests.
    Requester,
    /// Owns the memory that they name, or posts receives.
    Responder,
}

impl Role {
    fn number(self) -> u8 {
        match self {
            Role::Requester => 1,
            Role::Responder => 2,
        }
    }

    fn peer(self) -> Role {
        match self {
            Role::Requester => Role::Responder,
            Role::Responder => Role::Requester,
        }
    }

    fn ip(self) -> IpAddr {
        IpAddr::from([10, 77, 0, self.number()])
    }
}

/// What the other end has to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Introduction {
    /// Number of each queue pair.
    pub qpns: Vec<u32>,
    /// Key of the memory.
    pub rkey: u32,
}

/// A bound that a [`TransferConfig`] breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TransferError {
    /// No queue pairs, or too many.
    #[error("{0} queue pairs instead of 1 to {QPS_MAX}")]
    QueuePairs(u32),
    /// No messages in flight, or too many for the operation.
    #[error("{depth} messages in flight instead of 1 to {max}")]
    Depth {
        /// As configured.
        depth: u32,
        /// Most messages in flight on a queue pair.
        max: u32,
    },
    /// Messages are empty.
    #[error("messages of 0 bytes")]
    NoBytes,
    /// The buffers of all queue pairs exceed the memory.
    #[error("buffers of {message_bytes} bytes for {qps} queue pairs exceed {MEMORY_MAX} bytes")]
    Memory {
        /// Length of each message.
        message_bytes: u32,
        /// Queue pairs, each with one buffer.
        qps: u32,
    },
}

/// Why a transfer ended.
#[derive(Debug, Error)]
pub enum EndError {
    /// No end can be made of the configuration.
    #[error(transparent)]
    Config(#[from] TransferError),
    /// The other end has another configuration.
    #[error("the other end has {theirs} queue pairs, not {ours}")]
    Peer {
        /// Its queue pairs.
        theirs: usize,
        /// Those of this end.
        ours: usize,
    },
    /// The port failed.
    #[error("a port failed: {0}")]
    Port(#[from] PortError),
    /// The device refused a call.
    #[error("the device refused {what}: {why}")]
    Refused {
        /// What was asked of it.
        what: &'static str,
        /// Its reason.
        why: String,
    },
    /// A message ended with an error.
    #[error("queue pair {qpn}: a message ended with '{status}'")]
    Failed {
        /// The queue pair.
        qpn: u32,
        /// As completed.
        status: Status,
    },
    /// A queue pair broke.
    #[error("queue pair {qpn} broke: {}", reason(*.event))]
    Broken {
        /// The queue pair.
        qpn: u32,
        /// What happened to it.
        event: QpEvent,
    },
}

/// Why a queue pair broke, in the words of the C library's `ibv_event_type_str`.
fn reason(event: QpEvent) -> &'static str {
    match event {
        QpEvent::Fatal => "local work queue catastrophic error",
        QpEvent::RequestError => "invalid request local work queue error",
        QpEvent::AccessError => "local access violation work queue error",
        QpEvent::CommunicationEstablished => "communication established",
        QpEvent::SendQueueDrained => "send queue drained",
        QpEvent::LastWqeReached => "last WQE reached",
    }
}

fn refused<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> EndError {
    move |why| EndError::Refused { what, why: why.to_string() }
}

/// Packets with payload over which the ticks of steps are averaged before they are recorded.
const SLICE_PACKETS: u64 = 1024;
/// Ticks per packet beyond which all are alike.
const SLICE_TICKS_MAX: u64 = 1 << 32;

/// Ticks of the time-stamp counter in [`End::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepTicks {
    /// In steps in which anything happened.
    pub busy: u64,
    /// In steps in which nothing happened.
    pub idle: u64,
    /// Steps in which anything happened.
    pub busy_steps: u64,
    /// Packets with payload, sent or received.
    pub packets: u64,
}

/// What a packet takes, as the median of stretches of 1024 packets: a stretch in which the
/// processor was taken away does not count for more than another.
struct Slices {
    /// What the present one has so far.
    ticks: u64,
    packets: u64,
    each: Histogram<u64>,
}

impl Slices {
    fn new() -> Self {
        // Bounds and digits are valid.
        let each =
            Histogram::new_with_bounds(1, SLICE_TICKS_MAX, 3).unwrap_or_else(|_| unreachable!());
        Slices { ticks: 0, packets: 0, each }
    }

    #[inline]
    fn add(&mut self, ticks: u64, packets: u64) {
        self.ticks += ticks;
        self.packets += packets;
        if self.packets >= SLICE_PACKETS {
            self.each.saturating_record(self.ticks / self.packets);
            (self.ticks, self.packets) = (0, 0);
        }
    }
}

/// What an end did, since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndCounters {
    /// Messages completed.
    pub messages: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Frames received.
    pub rx_frames: u64,
    /// Packets sent again.
    pub retransmits: u64,
    /// Frames received and dropped.
    pub drops: u64,
}

/// One RNIC with its port, and the program that uses it.
///
/// Lifecycle: made, [connected](End::connect) to what the other end said of itself, then
/// [stepped](End::step) until it is told to [stop](End::stop) and is [quiet](End::is_quiet).
pub struct End<P> {
    role: Role,
    config: TransferConfig,
    device: Rnic<Region>,
    ports: [Watched<P>; 1],
    cq: CqId,
    keys: MrKeys,
    peer_rkey: RKey,
    qpns: Vec<Qpn>,
    /// The place of a queue pair for each message that may be posted there.
    ready: Vec<u32>,
    under_way: u64,
    is_stopped: bool,
    messages: u64,
    clock: Clock,
    ticks: Ticks,
    spent: StepTicks,
    slices: Slices,
    watch: Option<Arc<Watch>>,
}

impl<P: Port> End<P> {
    /// An end at `port`, whose memory holds bytes of its own.
    ///
    /// # Errors
    /// [`EndError::Config`], [`EndError::Refused`].
    pub fn new(role: Role, config: TransferConfig, port: P) -> Result<Self, EndError> {
        config.check()?;
        let watch = config.is_instrumented.then(|| Arc::new(Watch::new()));
        let len = config.memory_bytes();
        let region = Region { bytes: pattern(role, len as usize), watch: watch.clone() };
        let mac = MacAddr([2, 0, 10, 77, 0, role.number()]);
        let mut device = Rnic::new(Config::new(mac, role.ip()), region);
        let pd = device.alloc_pd().map_err(refused("a protection domain"))?;
        // Receives of twice the depth wait, and as many sends may be done at once.
        let cq = device
            .create_cq(4 * config.depth * config.qps)
            .map_err(refused("a completion queue"))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let keys = device.reg_mr(pd, 0, len, 0, access).map_err(refused("a memory region"))?;
        let init =
            QpInit { rq_depth: 2 * config.depth, ..QpInit::new(QpKind::Rc, pd, cq, config.depth) };
        let qpns =
            (0..config.qps).map(|_| device.create_qp(&init).map_err(refused("a queue pair")));
        let qpns = qpns.collect::<Result<Vec<_>, _>>()?;
        let each = match (role, config.operation) {
            (Role::Requester, _) => config.depth,
            (Role::Responder, Operation::Send) => 2 * config.depth,
            (Role::Responder, _) => 0,
        };
        Ok(End {
            role,
            config,
            device,
            ports: [Watched { port, watch: watch.clone() }],
            cq,
            keys,
            peer_rkey: RKey(0),
            ready: (0..each).flat_map(|_| 0..config.qps).collect(),
            qpns,
            under_way: 0,
            is_stopped: false,
            messages: 0,
            clock: Clock::start(),
            ticks: Ticks::new(),
            spent: StepTicks::default(),
            slices: Slices::new(),
            watch,
        })
    }

    /// What to tell the other end.
    pub fn introduction(&self) -> Introduction {
        Introduction {
            qpns: self.qpns.iter().map(|qpn| qpn.get()).collect(),
            rkey: self.keys.rkey.0,
        }
    }

    /// Connects each queue pair with the other end's of the same place.
    ///
    /// # Errors
    /// [`EndError::Peer`], [`EndError::Refused`].
    pub fn connect(&mut self, peer: &Introduction) -> Result<(), EndError> {
        if peer.qpns.len() != self.qpns.len() {
            let (theirs, ours) = (peer.qpns.len(), self.qpns.len());
            return Err(EndError::Peer { theirs, ours });
        }
        self.peer_rkey = RKey(peer.rkey);
        let now = self.clock.now();
        for (&qpn, &peer_qpn) in self.qpns.iter().zip(&peer.qpns) {
            let to = bring_up(self.role, &self.config, Qpn::new(peer_qpn));
            self.device.bring_up_qp(now, qpn, &to).map_err(refused("a connection"))?;
        }
        Ok(())
    }

    /// Looks after the port; the state of its link.
    ///
    /// # Errors
    /// The port's.
    pub fn service(&mut self) -> Result<LinkState, EndError> {
        Ok(self.ports[0].service()?)
    }

    /// Takes what is done, posts what may be, and has the device take its turn; true when anything
    /// happened.
    ///
    /// # Errors
    /// The port's, or a queue pair that failed.
    pub fn step(&mut self) -> Result<bool, EndError> {
        let (start, packets) = (self.ticks.now(), self.packets());
        let before = self.watch.as_deref().map(|watch| {
            watch.begin(WorkPart::Post);
            watch.spent()
        });
        let done = self.take_completions()?;
        self.post()?;
        let watch = self.watch.clone();
        if let Some(watch) = &watch {
            watch.enter(WorkPart::Protocol);
        }
        let (clock, mut failed) = (self.clock, None);
        let turned = turn(
            &mut self.device,
            &mut self.ports,
            &|| clock.now(),
            &TurnConfig::default(),
            &mut |_, e| {
                failed.get_or_insert(e);
            },
        );
        while let Some(event) = self.device.poll_event() {
            if let Event::Qp {
                qpn,
                kind: kind @ (QpEvent::Fatal | QpEvent::RequestError | QpEvent::AccessError),
            } = event
            {
                return Err(EndError::Broken { qpn: qpn.get(), event: kind });
            }
        }
        let is_busy = done > 0 || turned.is_busy();
        if let (Some(watch), Some(before)) = (&watch, before) {
            watch.enter(WorkPart::Post);
            if !is_busy {
                watch.set_spent(before);
            }
        }
        let took = self.ticks.now() - start;
        if is_busy {
            let packets = self.packets() - packets;
            self.spent.busy += took;
            self.spent.busy_steps += 1;
            self.spent.packets += packets;
            self.slices.add(took, packets);
        } else {
            self.spent.idle += took;
        }
        failed.map_or(Ok(is_busy), |error| Err(error.into()))
    }

    fn take_completions(&mut self) -> Result<usize, EndError> {
        let (first, ready, mut failed) = (self.qpns[0].get(), &mut self.ready, None);
        let mut all = 0;
        loop {
            let taken = self.device.poll_cq(self.cq, POLL_BATCH, |completion: Completion| {
                if completion.status != Status::Success {
                    failed.get_or_insert((completion.qpn.get(), completion.status));
                }
                // Numbers are given out one after another.
                ready.push(completion.qpn.get() - first);
            });
            all += taken;
            if taken < POLL_BATCH {
                break;
            }
        }
        self.messages += all as u64;
        self.under_way -= all as u64;
        failed.map_or(Ok(all), |(qpn, status)| Err(EndError::Failed { qpn, status }))
    }

    fn post(&mut self) -> Result<(), EndError> {
        if self.is_stopped && self.role == Role::Requester {
            return Ok(());
        }
        if self.ready.is_empty() {
            return Ok(());
        }
        let (len, now) = (self.config.message_bytes, self.clock.now());
        while let Some(at) = self.ready.pop() {
            let (qpn, address) = (self.qpns[at as usize], u64::from(at) * u64::from(len));
            let segments = [Sge { address, len, lkey: self.keys.lkey }];
            if self.role == Role::Responder {
                let request = RecvWr { wr_id: 0, segments: &segments };
                self.device.post_recv(qpn, &request).map_err(refused("a receive"))?;
            } else {
                let request = self.request(&segments, address);
                self.device.post_send(now, qpn, &request).map_err(refused("a message"))?;
            }
            self.under_way += 1;
        }
        Ok(())
    }

    fn request<'a>(&self, segments: &'a [Sge], remote_address: u64) -> SendWr<'a> {
        let rkey = self.peer_rkey;
        let op = match self.config.operation {
            Operation::Write => SendOp::Write { remote_address, rkey, immediate: None },
            Operation::Send => SendOp::Send { immediate: None, invalidate: None },
            Operation::Read => SendOp::Read { remote_address, rkey },
        };
        SendWr {
            wr_id: 0,
            op,
            segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        }
    }

    /// Posts no further messages.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// True for a requester of which no message is in flight.
    pub fn is_quiet(&self) -> bool {
        self.under_way == 0
    }

    /// What it did.
    pub fn counters(&self) -> EndCounters {
        let counters = self.device.counters();
        EndCounters {
            messages: self.messages,
            tx_frames: counters.get(Counter::TxFrames),
            rx_frames: counters.get(Counter::RxFrames),
            retransmits: counters.get(Counter::TxRetransmits),
            drops: counters.drops(),
        }
    }

    /// Packets with payload so far, sent again or not.
    #[inline]
    fn packets(&self) -> u64 {
        let sends = (self.role == Role::Requester) != (self.config.operation == Operation::Read);
        self.device.counters().get(if sends { Counter::TxFrames } else { Counter::RxFrames })
    }

    /// Forgets what steps took so far.
    pub fn measure_anew(&mut self) {
        self.spent = StepTicks::default();
        self.slices = Slices::new();
        if let Some(watch) = &self.watch {
            watch.set_spent(PartTicks::default());
        }
    }

    /// What its steps took since it was made, or [`End::measure_anew`].
    pub fn step_ticks(&self) -> StepTicks {
        self.spent
    }

    /// Ticks of busy steps for a packet with payload, as the median of stretches of 1024 packets;
    /// the mean of all where there was no such stretch.
    pub fn ticks_per_packet(&self) -> f64 {
        if self.slices.each.is_empty() {
            return self.spent.busy as f64 / self.spent.packets.max(1) as f64;
        }
        self.slices.each.value_at_quantile(0.5) as f64
    }

    /// What the time of busy steps went into, likewise; `None` if it is not instrumented.
    pub fn part_ticks(&self) -> Option<PartTicks> {
        self.watch.as_deref().map(Watch::spent)
    }

    /// The registered memory.
    pub fn memory(&self) -> &[u8] {
        &self.device.memory().bytes
    }
}

/// Bytes that differ from place to place, and between the two ends.
fn pattern(role: Role, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8)) as u8 ^ role.number()).collect()
}

/// How a queue pair is connected with its peer's.
fn bring_up(role: Role, config: &TransferConfig, peer: Qpn) -> BringUp {
    let reads = config.depth.min(128) as u8;
    BringUp {
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        path_mtu: config.mtu,
        max_rd_atomic: reads,
        max_dest_rd_atomic: reads,
        timeout: TIMEOUT_CODE,
        ..BringUp::to(role.peer().ip(), peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_port::loopback::{self, LoopbackPort};

    fn config(operation: Operation) -> TransferConfig {
        TransferConfig {
            operation,
            message_bytes: 20_000,
            mtu: Mtu::B4096,
            qps: 3,
            depth: 4,
            is_instrumented: false,
        }
    }

    fn pair(config: TransferConfig) -> [End<LoopbackPort>; 2] {
        let (near, far) = loopback::pair("wire", 64, 4352).unwrap();
        let mut near = End::new(Role::Requester, config, near).unwrap();
        let mut far = End::new(Role::Responder, config, far).unwrap();
        near.connect(&far.introduction()).unwrap();
        far.connect(&near.introduction()).unwrap();
        [near, far]
    }

    fn run([near, far]: &mut [End<LoopbackPort>; 2], messages: u64) {
        while near.counters().messages < messages {
            near.step().unwrap();
            far.step().unwrap();
        }
        near.stop();
        while !near.is_quiet() {
            near.step().unwrap();
            far.step().unwrap();
        }
    }

    #[test]
    fn each_operation_moves_the_memory() {
        for operation in [Operation::Write, Operation::Send, Operation::Read] {
            let mut ends = pair(config(operation));
            assert_ne!(ends[0].memory(), ends[1].memory());
            run(&mut ends, 50);
            let [near, far] = &ends;
            assert_eq!(near.memory(), far.memory(), "{operation:?}");
            let sender =
                if operation == Operation::Read { Role::Responder } else { Role::Requester };
            assert_eq!(near.memory(), pattern(sender, 60_000), "{operation:?}");
            let (near, far) = (near.counters(), far.counters());
            assert!(
                near.messages >= 50 && near.retransmits + near.drops + far.drops == 0,
                "{near:?} {far:?}"
            );
            assert_eq!((near.tx_frames, near.rx_frames), (far.rx_frames, far.tx_frames));
            assert_eq!(far.messages, if operation == Operation::Send { near.messages } else { 0 });
        }
    }

    #[test]
    fn parts_are_told_when_instrumented_and_make_up_the_steps() {
        let mut ends = pair(TransferConfig { is_instrumented: true, ..config(Operation::Write) });
        run(&mut ends, 200);
        for (end, is_sender) in ends.iter().zip([true, false]) {
            let [post, protocol, copy, seal, port] = end.part_ticks().unwrap();
            assert!(protocol > 0 && copy > 0 && port > 0, "{:?}", end.part_ticks());
            let sum = post + protocol + copy + seal + port;
            assert!(sum <= end.step_ticks().busy, "{sum} of {:?}", end.step_ticks());
            assert!(!is_sender || seal > 0);
        }
        assert!(pair(config(Operation::Write)).iter().all(|end| end.part_ticks().is_none()));
        ends[0].measure_anew();
        assert_eq!(
            (ends[0].part_ticks(), ends[0].step_ticks()),
            (Some([0; 5]), StepTicks::default())
        );
    }

    #[test]
    fn a_step_without_work_is_idle() {
        let [mut near, mut far] = pair(config(Operation::Write));
        assert!(!far.step().unwrap());
        assert!(near.step().unwrap());
        assert_eq!((far.step_ticks().busy, far.step_ticks().busy_steps), (0, 0));
        assert!(near.step_ticks().busy > 0 && near.step_ticks().busy_steps == 1);
    }

    #[test]
    fn packets_with_payload_are_counted_at_both_ends() {
        for operation in [Operation::Write, Operation::Send, Operation::Read] {
            let mut ends = pair(config(operation));
            run(&mut ends, 500);
            let messages = ends[0].counters().messages;
            for end in &ends {
                assert_eq!(end.step_ticks().packets, 5 * messages, "{operation:?}");
                assert!(end.ticks_per_packet() >= 1.0);
            }
        }
    }

    #[test]
    fn a_stretch_that_was_disturbed_counts_as_one() {
        let mut slices = Slices::new();
        for ticks in [100, 100, 1_000_000, 100, 110] {
            (0..16).for_each(|_| slices.add(64 * ticks, 64));
        }
        assert_eq!((slices.each.len(), slices.each.value_at_quantile(0.5)), (5, 100));
    }

    #[test]
    fn a_message_that_nobody_may_take_is_told() {
        let [mut near, mut far] = pair(config(Operation::Write));
        near.peer_rkey = RKey(0x1234_5678);
        let failure = (0..100).find_map(|_| {
            let near = near.step().err();
            near.or(far.step().err())
        });
        assert!(
            matches!(failure, Some(EndError::Failed { .. } | EndError::Broken { .. })),
            "{failure:?}"
        );
    }

    #[test]
    fn failures_are_told_in_words() {
        let failed = EndError::Failed { qpn: 7, status: Status::RetryExceeded };
        let told = "queue pair 7: a message ended with 'transport retry counter exceeded'";
        assert_eq!(failed.to_string(), told);
        let broken = EndError::Broken { qpn: 7, event: QpEvent::AccessError };
        let told = "queue pair 7 broke: local access violation work queue error";
        assert_eq!(broken.to_string(), told);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let fine = config(Operation::Read);
        assert_eq!(fine.check(), Ok(()));
        let too_large = TransferError::Memory { message_bytes: 1 << 30, qps: fine.qps };
        for (config, error) in [
            (TransferConfig { qps: 0, ..fine }, TransferError::QueuePairs(0)),
            (TransferConfig { qps: QPS_MAX + 1, ..fine }, TransferError::QueuePairs(QPS_MAX + 1)),
            (TransferConfig { depth: 0, ..fine }, TransferError::Depth { depth: 0, max: 128 }),
            (TransferConfig { depth: 129, ..fine }, TransferError::Depth { depth: 129, max: 128 }),
            (TransferConfig { message_bytes: 0, ..fine }, TransferError::NoBytes),
            (TransferConfig { message_bytes: 1 << 30, ..fine }, too_large),
        ] {
            assert_eq!(config.check(), Err(error));
        }
        let (port, _) = loopback::pair("wire", 64, 4352).unwrap();
        let mut near = End::new(Role::Requester, fine, port).unwrap();
        assert!(near.connect(&Introduction { qpns: vec![1], rkey: 0 }).is_err());
    }
}
