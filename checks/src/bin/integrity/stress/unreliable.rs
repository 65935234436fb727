//! UC and UD queue pairs beside the lanes: what arrives is whole, and on UC in order, each once, if
//! the path keeps the order: a UC responder takes whatever message begins.

use crate::Fault;
use crate::plan::fill;
use crate::session::Session;
use longhaul_rdma::{
    Access, Completion, CompletionOp, CompletionQueue, Endpoint, MemoryRegion, PathSettings, QpKind, QpState,
    QueuePair, QueuePairSettings, SendOp, Status,
};
use longhaul_rnic::{AddressVector, AhId, Destination, QpAttr};
use longhaul_units::{Psn, Qpn, Rng, SplitMix64};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Buffers of each side, and messages in flight at most.
const BUFFERS: usize = 64;
const IN_FLIGHT: u64 = 8;
/// From one message to the next.
const PAUSE: Duration = Duration::from_millis(2);
/// A datagram's first bytes are the peer's IP header.
const GRH: usize = 40;
const BUFFER: usize = 4096;
const QKEY: u32 = 0x1717;

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
    /// UC: the number that the next message has at least, where the path keeps the order.
    expected: Option<u64>,
    pub received: u64,
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
        // Half of it takes what comes, the other half has what goes.
        let region = session.pd.register(2 * BUFFERS * BUFFER, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let is_ud = kind == QpKind::Ud;
        qp.modify(&QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: (!is_ud).then_some(Access::REMOTE_WRITE),
            qkey: is_ud.then_some(QKEY),
            ..QpAttr::default()
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
            expected: (kind == QpKind::Uc && !any_order).then_some(0),
            received: 0,
        };
        (0..BUFFERS).try_for_each(|buffer| loose.post_receive(buffer))?;
        Ok(loose)
    }

    pub fn connect(
        &mut self,
        session: &Session,
        ip: IpAddr,
        qpn: Qpn,
        path: &PathSettings,
    ) -> Result<(), Fault> {
        self.mtu = path.mtu.bytes() as usize;
        let psn = Psn::new(0x40_0000);
        if self.kind == QpKind::Uc {
            return Ok(self.qp.connect(psn, &Endpoint { ip, qpn, psn }, path)?);
        }
        self.qp.modify(&QpAttr { state: Some(QpState::ReadyToReceive), ..QpAttr::default() })?;
        let ready = QpAttr { state: Some(QpState::ReadyToSend), sq_psn: Some(psn), ..QpAttr::default() };
        self.qp.modify(&ready)?;
        let way = AddressVector { destination_ip: ip, hop_limit: 64, traffic_class: 0, flow_label: 0 };
        let ah: AhId = session.device.engine().create_ah(self.qp.query()?.init.pd, &way)?;
        self.to = Some(Destination { ah, qpn, qkey: QKEY });
        Ok(())
    }

    fn post_receive(&self, buffer: usize) -> Result<(), Fault> {
        Ok(self.qp.post_recv(buffer as u64, &[self.region.piece(buffer * BUFFER, BUFFER as u32)])?)
    }

    /// The message `number` that a side sends.
    fn message(&self, server: bool, number: u64) -> Vec<u8> {
        let seed = self.seed ^ number << 1 ^ u64::from(server);
        let longest = if self.kind == QpKind::Uc { 3 * self.mtu } else { self.mtu };
        let longest = longest.min(BUFFER - GRH);
        let len = 8 + SplitMix64::new(!seed).below((longest - 7) as u64) as usize;
        let mut bytes = vec![0; len];
        fill(seed, &mut bytes);
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// Sends the next message if it is time.
    pub fn send(&mut self, now: Instant) -> Result<(), Fault> {
        if now < self.next_at || self.posted - self.completed >= IN_FLIGHT {
            return Ok(());
        }
        let number = self.posted;
        let bytes = self.message(self.server, number);
        let at = (BUFFERS + number as usize % BUFFERS) * BUFFER;
        self.region.write(at, &bytes);
        let immediate = number.is_multiple_of(2).then(|| (number as u32).to_be_bytes());
        let op = match self.to {
            Some(destination) => SendOp::Datagram { destination, immediate },
            None => SendOp::Send { immediate, invalidate: None },
        };
        self.qp.post_send(number, op, &[self.region.piece(at, bytes.len() as u32)])?;
        self.posted += 1;
        self.next_at = now + PAUSE;
        Ok(())
    }

    pub fn take(&mut self, completion: &Completion) -> Result<(), Fault> {
        let wrong = |what: &str| Err(format!("{:?} {what}: {completion:x?}", self.kind).into());
        if completion.status != Status::Success {
            return wrong("failed");
        }
        if completion.op == CompletionOp::Send {
            if completion.wr_id != self.completed {
                return wrong("completed out of order");
            }
            self.completed += 1;
            return Ok(());
        }
        let skipped = if self.kind == QpKind::Ud { GRH } else { 0 };
        let (buffer, len) = (completion.wr_id as usize, completion.byte_len as usize);
        let bytes = self.region.to_vec(buffer * BUFFER, len);
        let Some((first, _)) = bytes.get(skipped..).and_then(|bytes| bytes.split_first_chunk()) else {
            return wrong("is too short");
        };
        let number = u64::from_be_bytes(*first);
        if bytes[skipped..] != self.message(!self.server, number) {
            return wrong("has other bytes");
        }
        let immediate = number.is_multiple_of(2).then_some(number as u32);
        if completion.immediate.map(u32::from_be_bytes) != immediate {
            return wrong("has another immediate");
        }
        if let Some(expected) = &mut self.expected {
            if number < *expected {
                return wrong("came again, or behind a later one");
            }
            *expected = number + 1;
        }
        self.received += 1;
        self.post_receive(buffer)
    }
}
