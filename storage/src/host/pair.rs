//! A connection of a host: queue pair, and the memory of its slots.

use super::{AssociationError, Settings};
use crate::{SPIN, cannot};
use longhaul_nvme::host::Submission;
use longhaul_nvme::{CQE_LEN, QueueRequest, Refusal, Remote, SQE_LEN};
use longhaul_rdma::{
    Access, BusyPoll, CompletionOp, CompletionQueue, Connection, Device, MemoryRegion,
    PathSettings, ProtectionDomain, QueuePair, QueuePairSettings, RdmaError, Request, SendOp,
    Status,
};
use std::time::Duration;

/// Completions taken at once.
const BATCH: usize = 64;
/// `wr_id` of SENDs; those of receives are below.
const SEND: u64 = 1 << 32;
/// Bytes before the data of a slot, so that these are aligned.
const PAGE: usize = 4096;

pub(super) struct Pair {
    number: u16,
    cq: CompletionQueue,
    // The connection ends before its queue pair, and both before the memory that they access.
    connection: Connection,
    qp: QueuePair,
    /// Of each slot, a page that ends with its command, and its data.
    slots: MemoryRegion,
    responses: MemoryRegion,
    data_len: u32,
    found: Vec<Response>,
    /// SENDs that the next poll posts.
    pending: Vec<Request>,
    busy: BusyPoll,
}

/// A received response.
#[derive(Clone, Copy)]
pub(super) struct Response {
    bytes: [u8; CQE_LEN],
    len: usize,
}

impl Response {
    /// Its bytes; of one that is too long, there is no more than the receive's memory.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Pair {
    /// Connects queue `request.queue` with `slots` slots of `data_len` bytes, `within` that time.
    pub(super) fn connect(
        device: &Device,
        pd: &ProtectionDomain,
        settings: &Settings,
        request: &QueueRequest,
        slots: u16,
        data_len: u32,
        within: Duration,
    ) -> Result<Self, AssociationError> {
        let (slots, receives) = (u32::from(slots), u32::from(request.receives));
        let queue_pair = QueuePairSettings {
            // Those that were answered and not acknowledged included.
            send_depth: slots * 4,
            recv_depth: receives,
            segments_max: 1,
            inline_max: 0,
            ..QueuePairSettings::default()
        };
        let completions = slots * 4 + receives;
        let cq = device.create_cq(completions).map_err(cannot("create a completion queue"))?;
        let created = device.create_qp(pd, &cq, &cq, &queue_pair);
        let qp = created.map_err(cannot("create a queue pair"))?;
        let attach = device.engine().attach();
        let path = PathSettings {
            reads_max: attach.read_depth,
            timeout: attach.cm_ack_timeout,
            ..PathSettings::default()
        };
        qp.initialize(&path).map_err(cannot("initialize a queue pair"))?;
        let region = |count: u32, len: usize, access| {
            let registered = pd.register(count as usize * len, access);
            registered.map_err(cannot("register memory"))
        };
        let reached = Access::LOCAL_WRITE.and(Access::REMOTE_WRITE).and(Access::REMOTE_READ);
        let slots = region(slots, PAGE + data_len as usize, reached)?;
        let responses = region(receives, CQE_LEN, Access::LOCAL_WRITE)?;
        for receive in 0..receives {
            let piece = responses.piece(receive as usize * CQE_LEN, CQE_LEN as u32);
            qp.post_recv(receive.into(), &[piece]).map_err(cannot("post a receive"))?;
        }
        let to = settings.to;
        let connection =
            device.connect_with(&qp, to, &path, &request.write(), within).map_err(|cause| {
                let refusal = match &cause {
                    RdmaError::Refused(data) => Refusal::read(data),
                    _ => None,
                };
                match refusal {
                    Some(Refusal(reason)) => {
                        AssociationError::Refused { to, queue: request.queue, reason }
                    }
                    None => AssociationError::Connect { to, cause },
                }
            })?;
        Ok(Pair {
            number: request.queue,
            cq,
            slots,
            responses,
            data_len,
            connection,
            qp,
            found: Vec::with_capacity(BATCH),
            pending: Vec::with_capacity(BATCH),
            busy: BusyPoll::up_to(SPIN),
        })
    }

    fn data_at(&self, slot: u16) -> usize {
        usize::from(slot) * (PAGE + self.data_len as usize) + PAGE
    }

    /// Memory of a slot, for the controller.
    pub(super) fn buffer(&self, slot: u16) -> Remote {
        Remote {
            address: self.slots.address(self.data_at(slot)),
            rkey: self.slots.rkey(),
            len: self.data_len,
        }
    }

    /// Copies the first bytes of a slot's memory.
    pub(super) fn data(&self, slot: u16, len: usize) -> Vec<u8> {
        self.slots.to_vec(self.data_at(slot), len.min(self.data_len as usize))
    }

    /// Copies the first bytes of a slot's memory to `to`.
    pub(super) fn read(&self, slot: u16, to: &mut [u8]) {
        self.slots.read(self.data_at(slot), to);
    }

    /// Copies to a slot's memory.
    pub(super) fn write(&self, slot: u16, from: &[u8]) {
        self.slots.write(self.data_at(slot), from);
    }

    /// SENDs a command, at the next poll.
    pub(super) fn send(&mut self, submission: &Submission) {
        let Submission { slot, command, data, in_capsule } = submission;
        self.write(*slot, data);
        let at = self.data_at(*slot) - SQE_LEN;
        self.slots.write(at, command);
        self.pending.push(Request {
            wr_id: SEND,
            op: SendOp::Send { immediate: None, invalidate: None },
            piece: self.slots.piece(at, SQE_LEN as u32 + in_capsule),
            signaled: false,
            solicited: false,
        });
    }

    fn lost(&self, cause: &impl ToString) -> AssociationError {
        AssociationError::Lost { queue: self.number, cause: cause.to_string().into() }
    }

    /// Appends responses that have arrived to `to`; waits for one for at most `limit`.
    pub(super) fn responses(
        &mut self,
        limit: Duration,
        to: &mut Vec<Response>,
    ) -> Result<(), AssociationError> {
        loop {
            if self.poll()? > 0 {
                to.append(&mut self.found);
                return Ok(());
            }
            if !self.busy.should_poll() {
                break;
            }
        }
        if self.connection.has_ended() {
            return Err(self.lost(&"the target disconnected"));
        }
        if limit.is_zero() {
            return Ok(());
        }
        self.cq.arm(false).map_err(|error| self.lost(&error))?;
        if self.poll()? == 0 {
            match self.cq.wait_for_event(limit) {
                Ok(()) | Err(RdmaError::TimedOut(_)) => {}
                Err(error) => return Err(self.lost(&error)),
            }
            self.poll()?;
        }
        to.append(&mut self.found);
        Ok(())
    }

    /// Posts pending SENDs, takes completions, and returns the number of responses found.
    fn poll(&mut self) -> Result<usize, AssociationError> {
        if !self.pending.is_empty() {
            let posted = self.qp.post_list(self.pending.drain(..));
            posted.map_err(|(_, error)| self.lost(&error))?;
        }
        let Pair { cq, qp, responses, found, .. } = self;
        let mut failure = None;
        let mut posted = Ok(());
        let mut receives = [0_u64; BATCH];
        let mut count = 0;
        let take = |completion: longhaul_rdma::Completion| {
            if completion.status != Status::Success {
                failure.get_or_insert(completion.status);
            } else if completion.op == CompletionOp::Recv && count < BATCH {
                let mut bytes = [0; CQE_LEN];
                responses.read(completion.wr_id as usize * CQE_LEN, &mut bytes);
                let len = CQE_LEN.min(completion.byte_len as usize);
                found.push(Response { bytes, len });
                receives[count] = completion.wr_id;
                count += 1;
            }
        };
        let polled = cq.poll(BATCH, take);
        if count > 0 {
            let again = receives[..count].iter().map(|receive| {
                (*receive, responses.piece(*receive as usize * CQE_LEN, CQE_LEN as u32))
            });
            posted = qp.post_recv_list(again);
        }
        if count > 0 {
            self.busy.note_work();
        }
        match (polled, posted, failure) {
            (Err(error), ..) | (_, Err(error), _) => Err(self.lost(&error)),
            (_, _, Some(status)) => Err(self.lost(&status)),
            _ => Ok(count),
        }
    }

    /// Ends the connection and waits for the peer's confirmation.
    pub(super) fn disconnect(&self, limit: Duration) {
        // Without a confirmation the connection ends all the same when it is dropped.
        let _ = self.connection.disconnect(limit);
    }
}
