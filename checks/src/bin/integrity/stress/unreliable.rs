//! UC and UD queue pairs beside the lanes. Messages that arrive are whole and, on UC, in order and
//! not duplicated if the path keeps the order: a UC responder accepts any message that begins.
//!
//! On UC, SENDs and WRITEs alternate, each with and without immediate data. SENDs report which of
//! the peer's messages have been compared, so that the peer can reuse their slots.

use super::targets::{Claims, Extent, Targets, before, unsettled};
use crate::Fault;
use crate::plan::fill;
use crate::session::{Remote, Session};
use longhaul_rdma::{
    Access, Completion, CompletionOp, CompletionQueue, Endpoint, MemoryRegion, PathSettings,
    QpKind, QueuePair, QueuePairSettings, SendOp, Status,
};
use longhaul_rnic::{AhId, BringUp, Destination, QpAttr};
use longhaul_units::{Psn, Qpn, Rng, SplitMix64};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Buffers of each side, and the maximum of messages in flight.
pub const BUFFERS: usize = 64;
const IN_FLIGHT: u64 = 8;
/// Interval between messages.
const PAUSE: Duration = Duration::from_millis(2);
/// The peer's IP header at the beginning of a datagram.
const GRH: usize = 40;
/// Fits a UC message of three packets.
pub const BUFFER: usize = 3 * 4096 + 256;
const QKEY: u32 = 0x1717;
/// Number, last compared number, and a hash of both.
const HEADER: usize = 24;

/// Kind of a message; UC cycles through all four in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    SendImmediate,
    Send,
    Write,
    WriteImmediate,
}

/// Messages received, by kind.
#[derive(Clone, Copy, Default, Debug)]
pub struct Received {
    pub sends: u64,
    /// Only those with immediate data: only their bytes show the others.
    pub writes: u64,
}

/// One queue pair.
pub struct Loose {
    pub qp: QueuePair,
    kind: QpKind,
    seed: u64,
    server: bool,
    region: MemoryRegion,
    to: Option<Destination>,
    mtu: usize,
    posted: u64,
    completed: u64,
    next_at: Instant,
    any_order: bool,
    /// Highest number received plus one; all below it are compared.
    expected: u64,
    targets: Targets,
    claims: Claims,
    remote: Option<Remote>,
    pub received: Received,
}

impl Loose {
    pub fn new(
        session: &Session,
        cq: &CompletionQueue,
        kind: QpKind,
        server: bool,
        seed: u64,
        any_order: bool,
    ) -> Result<Self, Fault> {
        let settings = QueuePairSettings {
            kind,
            send_depth: 2 * IN_FLIGHT as u32,
            recv_depth: BUFFERS as u32,
            ..QueuePairSettings::default()
        };
        let qp = session.device.create_qp(&session.pd, cq, cq, &settings)?;
        // Half of it receives, the other half sends.
        let region = session
            .pd
            .register(2 * BUFFERS * BUFFER, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        qp.modify(&match kind {
            QpKind::Ud => QpAttr::initialize_datagrams(QKEY),
            QpKind::Uc | QpKind::Rc => QpAttr::initialize(Access::REMOTE_WRITE),
        })?;
        let loose = Loose {
            qp,
            kind,
            seed,
            server,
            region,
            to: None,
            mtu: 1024,
            posted: 0,
            completed: 0,
            next_at: Instant::now(),
            any_order,
            expected: 0,
            targets: Targets::new(&session.pd, any_order)?,
            claims: Claims::new(),
            remote: None,
            received: Received::default(),
        };
        (0..BUFFERS).try_for_each(|buffer| loose.post_receive(buffer))?;
        Ok(loose)
    }

    pub fn connect(
        &mut self,
        session: &Session,
        ip: IpAddr,
        (qpn, targets): (Qpn, Remote),
        path: &PathSettings,
    ) -> Result<(), Fault> {
        self.mtu = path.mtu.bytes() as usize;
        self.targets.set_mtu(self.mtu);
        let psn = Psn::new(0x40_0000);
        if self.kind == QpKind::Uc {
            self.remote = Some(targets);
            return Ok(self.qp.connect(psn, &Endpoint { ip, qpn, psn }, path)?);
        }
        let to = BringUp { sq_psn: psn, ..BringUp::to(ip, qpn) };
        to.make_ready(self.kind).iter().try_for_each(|attr| self.qp.modify(attr))?;
        let way = to.address;
        let ah: AhId = session.device.engine().create_ah(self.qp.query()?.init.pd, &way)?;
        self.to = Some(Destination { ah, qpn, qkey: QKEY });
        Ok(())
    }

    fn post_receive(&self, buffer: usize) -> Result<(), Fault> {
        Ok(self
            .qp
            .post_recv(buffer as u64, &[self.region.piece(buffer * BUFFER, BUFFER as u32)])?)
    }

    /// This side's memory for WRITEs.
    pub fn offer(&self) -> Remote {
        self.targets.offer()
    }

    /// UC WRITEs without immediate data that arrived whole.
    pub fn quiet_writes(&self) -> u64 {
        self.targets.whole
    }

    pub fn is_uc(&self) -> bool {
        self.kind == QpKind::Uc
    }

    fn kind_of(&self, number: u64) -> MessageKind {
        match (self.kind, number % 4) {
            (_, 0) | (QpKind::Ud, 2) => MessageKind::SendImmediate,
            (_, 1) | (QpKind::Ud, _) => MessageKind::Send,
            (_, 2) => MessageKind::Write,
            _ => MessageKind::WriteImmediate,
        }
    }

    fn immediate(&self, number: u64) -> Option<u32> {
        let kind = self.kind_of(number);
        matches!(kind, MessageKind::SendImmediate | MessageKind::WriteImmediate)
            .then_some(number as u32)
    }

    /// Message `number` of a side that has compared all below `compared`; WRITEs do not report
    /// that.
    fn message(&self, server: bool, number: u64, compared: u64) -> Vec<u8> {
        let seed = self.seed ^ number << 1 ^ u64::from(server);
        let longest = if self.kind == QpKind::Uc { 3 * self.mtu } else { self.mtu };
        let longest = longest.min(BUFFER - GRH);
        let len = HEADER + SplitMix64::new(!seed).below((longest - HEADER + 1) as u64) as usize;
        let mut bytes = vec![0; len];
        fill(seed, &mut bytes);
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        bytes[8..16].copy_from_slice(&compared.to_be_bytes());
        let hash = SplitMix64::new(seed ^ compared.rotate_left(32)).next_u64();
        bytes[16..HEADER].copy_from_slice(&hash.to_be_bytes());
        bytes
    }

    /// Sends the next message if it is due.
    pub fn send(&mut self, now: Instant) -> Result<(), Fault> {
        if now < self.next_at || self.posted - self.completed >= IN_FLIGHT {
            return Ok(());
        }
        let number = self.posted;
        let is_write =
            matches!(self.kind_of(number), MessageKind::Write | MessageKind::WriteImmediate);
        let remote = self.remote.filter(|_| is_write && self.claims.take(number));
        let bytes =
            self.message(self.server, number, if remote.is_some() { 0 } else { self.expected });
        let at = (BUFFERS + number as usize % BUFFERS) * BUFFER;
        self.region.write(at, &bytes);
        let immediate = self.immediate(number).map(u32::to_be_bytes);
        let op = match (self.to, remote) {
            (Some(destination), _) => SendOp::Datagram { destination, immediate },
            (None, Some(Remote { address, rkey })) => {
                let remote_address = address + Targets::place(number) as u64;
                SendOp::Write { remote_address, rkey, immediate }
            }
            (None, None) => SendOp::Send { immediate, invalidate: None },
        };
        self.qp.post_send(number, op, &[self.region.piece(at, bytes.len() as u32)])?;
        self.posted += 1;
        self.next_at = now + PAUSE;
        Ok(())
    }

    pub fn take(&mut self, completion: &Completion) -> Result<(), Fault> {
        let kind = self.kind;
        let wrong = |what: &str| Err(format!("{kind:?} {what}: {completion:x?}").into());
        if completion.status != Status::Success {
            return wrong("failed");
        }
        if matches!(completion.op, CompletionOp::Send | CompletionOp::Write) {
            if completion.wr_id != self.completed {
                return wrong("completed out of order");
            }
            self.completed += 1;
            return Ok(());
        }
        let number = match (completion.op, completion.immediate) {
            (CompletionOp::RecvWriteImmediate, Some(number)) if self.remote.is_some() => {
                u32::from_be_bytes(number).into()
            }
            (CompletionOp::Recv, _) => match self.sent_number(completion) {
                Ok(number) => number,
                Err(what) => return wrong(what),
            },
            _ => return wrong("is nothing that was sent"),
        };
        if completion.immediate.map(u32::from_be_bytes) != self.immediate(number) {
            return wrong("has another immediate");
        }
        let is_new = number >= self.expected;
        if !is_new && kind == QpKind::Uc && !self.any_order {
            return wrong("came again, or behind a later one");
        }
        let is_write = completion.op == CompletionOp::RecvWriteImmediate;
        if is_write && completion.byte_len as usize != self.message(!self.server, number, 0).len() {
            return wrong("has another length");
        }
        if is_new {
            self.compare_writes(number, is_write).map_err(|e| format!("{:?}: {e}", self.kind))?;
            self.expected = number + 1;
        }
        let count = if is_write { &mut self.received.writes } else { &mut self.received.sends };
        *count += 1;
        self.post_receive(completion.wr_id as usize)
    }

    /// Number of a SEND whose bytes are valid, and the number that its sender has compared.
    fn sent_number(&mut self, completion: &Completion) -> Result<u64, &'static str> {
        let skipped = if self.kind == QpKind::Ud { GRH } else { 0 };
        let (buffer, len) = (completion.wr_id as usize, completion.byte_len as usize);
        let bytes = self.region.to_vec(buffer * BUFFER, len);
        let message = bytes.get(skipped..).unwrap_or_default();
        let word = |at: usize| message.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
        let (Some(number), Some(compared)) = (word(0), word(8)) else { return Err("is too short") };
        if *message != self.message(!self.server, number, compared) {
            return Err("has other bytes");
        }
        if compared > self.posted {
            return Err("says that it has what was never sent");
        }
        self.claims.hear(compared);
        Ok(number)
    }

    /// Compares the slots of WRITEs since the last message, after the arrival of `number`.
    fn compare_writes(&mut self, number: u64, is_write: bool) -> Result<(), Fault> {
        if self.kind != QpKind::Uc {
            return Ok(());
        }
        for lost in unsettled(self.expected, number) {
            if matches!(self.kind_of(lost), MessageKind::Write | MessageKind::WriteImmediate) {
                self.compare_slot(lost, Extent::AnyPart)?;
            }
        }
        if is_write { self.compare_slot(number, Extent::Whole) } else { Ok(()) }
    }

    fn compare_slot(&mut self, number: u64, extent: Extent) -> Result<(), Fault> {
        let data = self.message(!self.server, number, 0);
        let before = before(number).map(|before| self.message(!self.server, before, 0));
        self.targets.compare(number, extent, &data, before.as_deref())
    }
}
