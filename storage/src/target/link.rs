//! A connection of a target: queue pair, and the memory of its slots.

use longhaul_nvme::target::{Accepted, Capsule, Output, QueueId, Response, Step, Token};
use longhaul_nvme::{Accept, CQE_LEN, Remote, SQE_LEN, Target};
use longhaul_rdma::{
    Access, CompletionQueue, Connection, ConnectionRequest, Device, MemoryRegion, PathSettings,
    ProtectionDomain, QueuePair, QueuePairSettings, RdmaError, Request, SendOp,
};
use longhaul_units::Instant;
use std::net::IpAddr;

/// A posted work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A receive for a capsule.
    Receive,
    /// A READ of the host's memory.
    Fetch,
    /// The SEND of a response, or the WRITE before it.
    Respond,
}

impl Work {
    fn id(self, slot: u16) -> u64 {
        (self as u64) << 16 | u64::from(slot)
    }

    /// The work request and the slot of a completion.
    pub(super) fn of(id: u64) -> (Self, u16) {
        let work = match id >> 16 {
            0 => Work::Receive,
            1 => Work::Fetch,
            _ => Work::Respond,
        };
        (work, id as u16)
    }
}

/// Completions that a slot may have at once: of its receive, and of two send work requests.
pub(super) const COMPLETIONS_PER_SLOT: u32 = 3;

pub(super) struct Link {
    queue: QueueId,
    peer: IpAddr,
    slots: u16,
    // The connection ends before its queue pair, and both before the memory that they access.
    connection: Connection,
    qp: QueuePair,
    capsules: MemoryRegion,
    data: MemoryRegion,
    responses: MemoryRegion,
    capsule_len: u32,
    data_len: u32,
    /// Work requests and receives that [`Link::post`] posts.
    pending: Vec<Request>,
    receives: Vec<u16>,
}

impl Link {
    pub(super) fn accept(
        device: &Device,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        request: ConnectionRequest,
        accepted: &Accepted,
        reply: Accept,
    ) -> Result<Self, RdmaError> {
        let slots = u32::from(accepted.slots);
        let settings = QueuePairSettings {
            // A READ, and then a WRITE and a SEND.
            send_depth: slots * 2,
            recv_depth: slots,
            segments_max: 1,
            inline_max: 0,
            ..QueuePairSettings::default()
        };
        let qp = device.create_qp(pd, cq, cq, &settings)?;
        // Hosts access no memory of a target.
        let path = PathSettings {
            reads_max: device.engine().attach().read_depth,
            access: Access::LOCAL_READ,
            ..PathSettings::default()
        };
        qp.initialize(&path)?;
        let region = |len: u32| pd.register(slots as usize * len as usize, Access::LOCAL_WRITE);
        let (capsule_len, data_len) = (accepted.capsule, accepted.data);
        let (capsules, data) = (region(capsule_len)?, region(data_len)?);
        let responses = region(CQE_LEN as u32)?;
        for slot in 0..accepted.slots {
            let piece = capsules.piece(usize::from(slot) * capsule_len as usize, capsule_len);
            qp.post_recv(Work::Receive.id(slot), &[piece])?;
        }
        let peer = request.peer();
        let connection = request.accept(&qp, &path, &reply.write())?;
        let queue = accepted.queue;
        Ok(Link {
            queue,
            peer,
            slots: accepted.slots,
            capsules,
            data,
            responses,
            capsule_len,
            data_len,
            pending: Vec::new(),
            receives: Vec::new(),
            connection,
            qp,
        })
    }

    pub(super) fn queue(&self) -> QueueId {
        self.queue
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qp.qpn().get()
    }

    pub(super) fn slots(&self) -> u16 {
        self.slots
    }

    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    pub(super) fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    /// Offset of a slot's capsule.
    fn capsule_at(&self, slot: u16) -> usize {
        usize::from(slot) * self.capsule_len as usize
    }

    /// Offset of a slot's data.
    fn data_at(&self, slot: u16) -> usize {
        usize::from(slot) * self.data_len as usize
    }

    /// True if [`Link::post`] has something to post.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty() || !self.receives.is_empty()
    }

    /// Posts what is pending.
    pub(super) fn post(&mut self) -> Result<(), RdmaError> {
        let Link { capsules, capsule_len, receives, pending, qp, .. } = self;
        if !receives.is_empty() {
            let receives = receives.drain(..).map(|slot| {
                let at = usize::from(slot) * *capsule_len as usize;
                (Work::Receive.id(slot), capsules.piece(at, *capsule_len))
            });
            qp.post_recv_list(receives)?;
        }
        if pending.is_empty() {
            return Ok(());
        }
        qp.post_list(pending.drain(..)).map_err(|(_, error)| error)
    }

    /// Posts the receive of a slot again.
    pub(super) fn release(&mut self, slot: u16) {
        self.receives.push(slot);
    }

    pub(super) fn receive(
        &self,
        target: &mut Target,
        now: Instant,
        token: Token,
        len: u32,
    ) -> Step {
        let at = self.capsule_at(token.slot);
        let mut head = [0; SQE_LEN];
        self.capsules.read(at, &mut head);
        let head = &head[..SQE_LEN.min(len as usize)];
        let data =
            |from: u32, len: u32| self.capsules.to_vec(at + SQE_LEN + from as usize, len as usize);
        target.receive(now, token, &Capsule { head, len, data: &data })
    }

    pub(super) fn fetched(&self, target: &mut Target, now: Instant, token: Token) -> Step {
        let at = self.data_at(token.slot);
        target.fetched(now, token, &|len| self.data.to_vec(at, len as usize))
    }

    /// Copies data of a slot to `to`: in-capsule data from this offset, or what was fetched.
    pub(super) fn read(&self, slot: u16, in_capsule: Option<u32>, to: &mut [u8]) {
        match in_capsule {
            Some(from) => {
                self.capsules.read(self.capsule_at(slot) + SQE_LEN + from as usize, to);
            }
            None => self.data.read(self.data_at(slot), to),
        }
    }

    /// Copies data for the host to a slot.
    pub(super) fn write(&self, slot: u16, from: &[u8]) {
        self.data.write(self.data_at(slot), from);
    }

    /// READs memory of the host.
    pub(super) fn fetch(&mut self, slot: u16, from: Remote) {
        self.pending.push(Request {
            wr_id: Work::Fetch.id(slot),
            op: SendOp::Read { remote_address: from.address, rkey: from.rkey },
            piece: self.data.piece(self.data_at(slot), from.len),
            signaled: true,
            solicited: false,
        });
    }

    /// WRITEs the data of a response and SENDs it.
    pub(super) fn respond(&mut self, response: Response) {
        let Response { token: Token { slot, .. }, completion, invalidate, output } = response;
        let wr_id = Work::Respond.id(slot);
        let remote = match output {
            Some(Output::Buffer(remote)) => Some(remote),
            Some(Output::Bytes(bytes, remote)) => {
                self.write(slot, &bytes);
                Some(remote)
            }
            None => None,
        };
        if let Some(Remote { address, rkey, len }) = remote {
            self.pending.push(Request {
                wr_id,
                op: SendOp::Write { remote_address: address, rkey, immediate: None },
                piece: self.data.piece(self.data_at(slot), len),
                signaled: false,
                solicited: false,
            });
        }
        let at = usize::from(slot) * CQE_LEN;
        self.responses.write(at, &completion);
        self.pending.push(Request {
            wr_id,
            op: SendOp::Send { immediate: None, invalidate },
            piece: self.responses.piece(at, CQE_LEN as u32),
            signaled: true,
            solicited: false,
        });
    }
}
