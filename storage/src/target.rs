//! A target over a device: carries out the steps of [`longhaul_nvme::Target`].
//!
//! One thread polls one completion queue for all hosts. It busy-polls while commands come fast, and
//! otherwise sleeps until an event of the queue, or for a tick of 5 ms.

mod access;
mod link;

use crate::medium::Medium;
use crate::medium::file::Accesses;
use crate::{DeviceError, SPIN, cannot};
use access::{Command, Zeroing};
use link::{COMPLETIONS_PER_SLOT, Link, Work};
use longhaul_host::Clock;
use longhaul_nvme::target::{
    EndReason, Hosts, IoError, Namespace, QueueId, Step, Subsystem, TargetConfig, Token,
};
use longhaul_nvme::{Accept, Nqn, Refusal, RefusalReason, Target};
use longhaul_rdma::{
    BusyPoll, Completion, CompletionQueue, ConnectionRequest, Device, Listener, ProtectionDomain,
    RdmaError, Status,
};
use longhaul_units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest sleep, and time between two looks at connections while commands come.
const TICK: Duration = Duration::from_millis(5);
/// Completions taken at once.
const BATCH: usize = 64;
/// Polls between two readings of the clock.
const POLLS_PER_LOOK: u32 = 256;
/// Completions of all hosts: what a device admits. The queue's memory grows as it fills.
const COMPLETIONS: u32 = 1 << 22;

/// A namespace to serve.
pub struct Served {
    /// Its medium.
    pub medium: Medium,
    /// Length in bytes; a part of a block at the end is not served.
    pub bytes: u64,
    /// Bytes of a block: 2^this, 9 to 16.
    pub block_shift: u8,
}

/// What to serve.
pub struct Settings {
    /// Port of the RDMA connection manager.
    pub port: u16,
    /// Name of the subsystem.
    pub nqn: Nqn,
    /// Which hosts may connect.
    pub hosts: Hosts,
    /// Namespaces, numbered from 1.
    pub namespaces: Vec<Served>,
    /// I/O queues of a host.
    pub queues: u16,
    /// Entries of a queue.
    pub entries: u16,
    /// In-capsule data in bytes, a multiple of 16.
    pub in_capsule: u32,
    /// Largest transfer in bytes: 4 KiB times a power of two.
    pub transfer_max: u32,
}

/// News for the user.
#[derive(Debug)]
pub enum News {
    /// A host connected a queue.
    Connected {
        /// Its address.
        peer: IpAddr,
    },
    /// A connection was refused.
    Refused {
        /// The host's address.
        peer: IpAddr,
        /// Why.
        reason: RefusalReason,
    },
    /// The target ends a connection.
    Ending {
        /// The host's address.
        peer: IpAddr,
        /// Why.
        reason: EndReason,
    },
    /// A connection ended.
    Ended {
        /// The host's address.
        peer: IpAddr,
        /// The completion that ended it, unless the host disconnected.
        status: Option<Status>,
    },
}

/// What a target has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Commands received.
    pub commands: u64,
    /// Bytes read by hosts.
    pub read_bytes: u64,
    /// Bytes written by hosts.
    pub written_bytes: u64,
    /// Writes whose data came in their capsules.
    pub in_capsule_writes: u64,
    /// Responses that invalidated a key of the host.
    pub invalidations: u64,
    /// Connections accepted.
    pub connections: u64,
}

/// A listening target.
pub struct Server {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    listener: Listener,
    port: u16,
    target: Target,
    media: BTreeMap<u32, Medium>,
    accesses: Option<Accesses<Token>>,
    /// Flushes of all files: accesses that are outstanding, and the outcome so far.
    flushes: BTreeMap<Token, (u32, Result<(), IoError>)>,
    zeroing: VecDeque<Zeroing>,
    links: BTreeMap<u32, Link>,
    by_queue: BTreeMap<QueueId, u32>,
    clock: Clock,
    totals: Totals,
}

impl Server {
    /// Listens for hosts.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn listen(device: &Device, settings: Settings) -> Result<Self, DeviceError> {
        let pd = device.alloc_pd().map_err(cannot("allocate a protection domain"))?;
        let cq = device.create_cq(COMPLETIONS).map_err(cannot("create a completion queue"))?;
        let listener = device.listen(settings.port).map_err(cannot("listen"))?;
        let (mut media, mut namespaces) = (BTreeMap::new(), BTreeMap::new());
        for (number, served) in (1..).zip(settings.namespaces) {
            let Served { medium, bytes, block_shift } = served;
            let place = (device.engine().attach().mac.0, settings.port);
            let id = namespace_id(&settings.nqn, place, number);
            let volatile_cache = matches!(medium, Medium::File(_));
            let blocks = bytes >> block_shift;
            namespaces.insert(number, Namespace { blocks, block_shift, id, volatile_cache });
            media.insert(number, medium);
        }
        let has_files = media.values().any(|medium| matches!(medium, Medium::File(_)));
        let subsystem = Subsystem {
            nqn: settings.nqn,
            serial: format!("{:016x}", device.engine().attach().guid()),
            model: "Longhaul".to_owned(),
            hosts: settings.hosts,
            namespaces,
        };
        let config = TargetConfig {
            subsystems: vec![subsystem],
            queues_max: settings.queues,
            entries_max: settings.entries,
            in_capsule: settings.in_capsule,
            transfer_max: settings.transfer_max,
            ..TargetConfig::default()
        };
        Ok(Server {
            device: device.clone(),
            pd,
            cq,
            listener,
            port: settings.port,
            target: Target::new(config),
            media,
            accesses: has_files.then(Accesses::new),
            flushes: BTreeMap::new(),
            zeroing: VecDeque::new(),
            links: BTreeMap::new(),
            by_queue: BTreeMap::new(),
            clock: Clock::start(),
            totals: Totals::default(),
        })
    }

    /// What it has done so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut tell: impl FnMut(News),
    ) -> Result<(), DeviceError> {
        let mut found = Vec::with_capacity(BATCH);
        let (mut polls, mut busy) = (0_u32, BusyPoll::up_to(SPIN));
        let mut looked = Instant::ZERO;
        while !stop.load(Ordering::Relaxed) {
            let worked = self.turn(&mut found, &mut tell)?;
            if worked {
                busy.note_work();
            }
            let sleeps = !worked && !busy.should_poll();
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_PER_LOOK) || sleeps {
                let now = self.clock.now();
                if now.since(looked).as_ns() >= TICK.as_nanos() as u64 {
                    looked = now;
                    self.look(now, &mut tell)?;
                }
            }
            if sleeps {
                self.cq.arm(false).map_err(cannot("request an event"))?;
                // What came before the event was requested causes none.
                if self.turn(&mut found, &mut tell)? {
                    busy.note_work();
                } else {
                    self.sleep()?;
                }
            }
        }
        Ok(())
    }

    /// Handles completions and finished accesses. `false` if there were none.
    fn turn(
        &mut self,
        found: &mut Vec<Completion>,
        tell: &mut impl FnMut(News),
    ) -> Result<bool, DeviceError> {
        self.cq.poll(BATCH, |completion| found.push(completion)).map_err(cannot("poll"))?;
        let mut worked = !found.is_empty();
        let now = self.clock.now();
        for completion in found.drain(..) {
            self.complete(now, &completion, tell);
        }
        while let Some((token, outcome)) = self.accesses.as_mut().and_then(Accesses::poll) {
            worked = true;
            self.file_accessed(token, outcome, tell);
        }
        worked |= self.zero(tell);
        while let Some(step) = self.target.poll_step() {
            worked = true;
            self.carry_out(step, tell);
        }
        if worked {
            self.post(tell);
        }
        Ok(worked)
    }

    /// Sleeps until the requested event, or for a tick.
    fn sleep(&self) -> Result<(), DeviceError> {
        if self.accesses.as_ref().is_some_and(|accesses| accesses.outstanding() > 0) {
            std::thread::sleep(Duration::from_micros(20));
            return Ok(());
        }
        match self.cq.wait_for_event(TICK) {
            Ok(()) | Err(RdmaError::TimedOut(_)) => Ok(()),
            Err(error) => Err(cannot("wait for an event")(error)),
        }
    }

    /// Looks for new, ended and silent connections.
    fn look(&mut self, now: Instant, tell: &mut impl FnMut(News)) -> Result<(), DeviceError> {
        let links = self.links.iter().filter(|(_, link)| link.has_ended());
        let ended: Vec<u32> = links.map(|(qpn, _)| *qpn).collect();
        for qpn in ended {
            self.close(qpn, None, tell);
        }
        while !self.target.is_settling() {
            match self.listener.request(Duration::ZERO) {
                Ok(request) => self.accept(now, request, tell),
                Err(RdmaError::Rejected { peer, .. }) => {
                    tell(News::Refused { peer, reason: RefusalReason::Resources });
                }
                Err(RdmaError::TimedOut(_)) => break,
                // A host gave its request up.
                Err(RdmaError::Peer(_)) => {}
                Err(error) => return Err(cannot("wait for a connection")(error)),
            }
        }
        if self.target.poll_timeout().is_some_and(|at| at <= now) {
            self.target.expire(now);
        }
        Ok(())
    }

    /// True if the completion queue has room for another connection.
    fn has_room(&self, slots: u16) -> bool {
        let others: u32 = self.links.values().map(|link| u32::from(link.slots())).sum();
        (others + u32::from(slots)) * COMPLETIONS_PER_SLOT <= COMPLETIONS
    }

    fn accept(&mut self, now: Instant, request: ConnectionRequest, tell: &mut impl FnMut(News)) {
        let peer = request.peer();
        let local = SocketAddr::new(request.local(), self.port);
        let accepted = self.target.request(now, local, request.private_data());
        let accepted = accepted.and_then(|accepted| {
            if self.has_room(accepted.slots) {
                return Ok(accepted);
            }
            self.target.closed(accepted.queue);
            Err(RefusalReason::Resources)
        });
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(reason) => {
                tell(News::Refused { peer, reason });
                // The host may have given up meanwhile.
                let _ = request.reject(&Refusal(reason).write());
                return;
            }
        };
        let queue = accepted.queue;
        let reply = Accept { receives: accepted.slots / 2 };
        let link = Link::accept(&self.device, &self.pd, &self.cq, request, &accepted, reply);
        match link {
            Ok(link) => {
                tell(News::Connected { peer });
                self.totals.connections += 1;
                let qpn = link.qpn();
                self.by_queue.insert(queue, qpn);
                self.links.insert(qpn, link);
            }
            // Out of queue pairs or memory, or the host gave up: this connection fails alone.
            Err(_) => {
                self.target.closed(queue);
                tell(News::Refused { peer, reason: RefusalReason::Resources });
            }
        }
    }

    /// Posts the work requests of all connections.
    fn post(&mut self, tell: &mut impl FnMut(News)) {
        let mut failed = Vec::new();
        for (qpn, link) in self.links.iter_mut().filter(|(_, link)| link.is_pending()) {
            if link.post().is_err() {
                failed.push(*qpn);
            }
        }
        for qpn in failed {
            self.close(qpn, None, tell);
        }
    }

    fn close(&mut self, qpn: u32, status: Option<Status>, tell: &mut impl FnMut(News)) {
        let Some(link) = self.links.remove(&qpn) else { return };
        self.by_queue.remove(&link.queue());
        self.target.closed(link.queue());
        tell(News::Ended { peer: link.peer(), status });
    }

    fn complete(&mut self, now: Instant, completion: &Completion, tell: &mut impl FnMut(News)) {
        let qpn = completion.qpn.get();
        let Some(link) = self.links.get_mut(&qpn) else { return };
        if completion.status != Status::Success {
            return self.close(qpn, Some(completion.status), tell);
        }
        let (work, slot) = Work::of(completion.wr_id);
        let token = Token { queue: link.queue(), slot };
        match work {
            Work::Receive => {
                self.totals.commands += 1;
                let step = link.receive(&mut self.target, now, token, completion.byte_len);
                self.carry_out(step, tell);
            }
            Work::Fetch => {
                let step = link.fetched(&mut self.target, now, token);
                self.carry_out(step, tell);
            }
            Work::Respond => {
                self.target.sent(token);
                link.release(slot);
            }
        }
    }

    fn carry_out(&mut self, first: Step, tell: &mut impl FnMut(News)) {
        let mut step = first;
        loop {
            let queue = match &step {
                Step::Nothing => return,
                Step::Fetch { token, .. } | Step::Execute { token, .. } => token.queue,
                Step::Respond(response) => response.token.queue,
                Step::Disconnect { queue, .. } => *queue,
            };
            let Some(qpn) = self.by_queue.get(&queue).copied() else { return };
            let Some(link) = self.links.get_mut(&qpn) else { return };
            match step {
                Step::Nothing => {}
                Step::Execute { token, namespace, io, durable, .. } => {
                    if let Some(next) = self.execute(qpn, Command { token, namespace, io, durable })
                    {
                        step = next;
                        continue;
                    }
                }
                Step::Fetch { token, from } => link.fetch(token.slot, from),
                Step::Respond(response) => {
                    self.totals.invalidations += u64::from(response.invalidate.is_some());
                    link.respond(response);
                }
                Step::Disconnect { reason, .. } => {
                    tell(News::Ending { peer: link.peer(), reason });
                    self.close(qpn, None, tell);
                }
            }
            return;
        }
    }
}

/// The NGUID of a namespace: the same whenever a target is started with the same name at the same
/// place, and that of no other.
fn namespace_id(nqn: &Nqn, (mac, port): ([u8; 6], u16), number: u32) -> [u8; 16] {
    // FNV-1a (Fowler, Noll, Vo), because the standard library's hashes change between releases.
    let place = mac.into_iter().chain(port.to_be_bytes());
    let hash = nqn.as_str().bytes().chain(place).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut id = [0; 16];
    id[..4].copy_from_slice(b"LHNS");
    id[4..12].copy_from_slice(&hash.to_be_bytes());
    id[12..].copy_from_slice(&number.to_be_bytes());
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_other_names_places_and_numbers_have_other_ids() {
        let nqn = |name: &str| -> Nqn { format!("nqn.2026-01.longhaul:{name}").parse().unwrap() };
        let (here, there) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 1, 0]);
        let ids = [
            namespace_id(&nqn("a"), (here, 4420), 1),
            namespace_id(&nqn("a"), (here, 4420), 2),
            namespace_id(&nqn("a"), (here, 4421), 1),
            namespace_id(&nqn("a"), (there, 4420), 1),
            namespace_id(&nqn("b"), (here, 4420), 1),
        ];
        let different: std::collections::BTreeSet<_> = ids.into_iter().collect();
        assert_eq!(different.len(), ids.len());
        assert_eq!(ids[0], namespace_id(&nqn("a"), (here, 4420), 1));
    }
}
