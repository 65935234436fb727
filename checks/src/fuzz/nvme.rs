//! Arbitrary capsules for a target of NVMe-oF, and arbitrary responses for a host.

use longhaul_nvme::host::{Admin, Goal, Identity, IoQueue, Operation, OperationKind};
use longhaul_nvme::target::{
    ALL_NAMESPACES, Accepted, Capsule, Hosts, Io, IoError, Namespace, Output, QueueId, Source,
    Step, Subsystem, TargetConfig, Token,
};
use longhaul_nvme::{
    CONNECT_DATA_LEN, Command, ConnectData, DYNAMIC_CONTROLLER, DataPointer, Nqn, QueueRequest,
    Remote, SQE_LEN, Target, admin,
};
use longhaul_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

const BLOCKS: u64 = 64;
const BLOCK_SHIFT: u8 = 9;
const STEPS_MAX: usize = 512;
/// CC: enabled, with entries of 64 and 16 bytes.
const ENABLED: u64 = 0x0046_0001;

fn name() -> Nqn {
    "nqn.2026-01.org.example:fuzz".parse().expect("a valid name")
}

fn config() -> TargetConfig {
    let namespace =
        Namespace { blocks: BLOCKS, block_shift: BLOCK_SHIFT, id: [1; 16], volatile_cache: true };
    let subsystem = Subsystem {
        nqn: name(),
        serial: "1".to_owned(),
        model: "Longhaul".to_owned(),
        hosts: Hosts::Any,
        namespaces: BTreeMap::from([(1, namespace)]),
    };
    TargetConfig {
        subsystems: vec![subsystem],
        queues_max: 2,
        entries_max: 32,
        in_capsule: 1024,
        transfer_max: 8192,
        controllers_max: 4,
        connections_max: 8,
    }
}

/// A driver of a target that checks each step.
struct Driver {
    target: Target,
    now: Instant,
    links: BTreeMap<QueueId, Accepted>,
    /// Slots whose receive is posted.
    free: BTreeSet<(QueueId, u16)>,
}

impl Driver {
    fn request(&mut self, private_data: &[u8]) -> Option<QueueId> {
        let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 4420);
        let accepted = self.target.request(self.now, local, private_data).ok()?;
        self.links.insert(accepted.queue, accepted);
        self.free.extend((0..accepted.slots).map(|slot| (accepted.queue, slot)));
        Some(accepted.queue)
    }

    /// A capsule arrives; the host's memory contains `memory`, again and again.
    fn send(&mut self, queue: QueueId, capsule: &[u8], memory: &[u8]) {
        let Some(accepted) = self.links.get(&queue) else { return };
        let capsule = &capsule[..capsule.len().min(accepted.capsule as usize)];
        let mut of_it = self.free.range((queue, 0)..=(queue, u16::MAX));
        let Some(slot) = of_it.next().map(|(_, slot)| *slot) else { return };
        self.free.remove(&(queue, slot));
        let token = Token { queue, slot };
        let data = |at: u32, len: u32| {
            let at = SQE_LEN + at as usize;
            capsule[at..at + len as usize].to_vec()
        };
        let head = &capsule[..capsule.len().min(SQE_LEN)];
        let arrived = Capsule { head, len: capsule.len() as u32, data: &data };
        let step = self.target.receive(self.now, token, &arrived);
        self.carry_out(step, capsule.len().saturating_sub(SQE_LEN), memory);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(step) = self.target.poll_step() {
            self.carry_out(step, 0, &[]);
        }
    }

    fn carry_out(&mut self, first: Step, in_capsule: usize, memory: &[u8]) {
        let mut step = first;
        loop {
            step = match step {
                Step::Nothing => return,
                Step::Fetch { token, from } => {
                    let accepted = self.links[&token.queue];
                    assert!(from.len <= accepted.data, "a fetch that exceeds the slot's buffer");
                    self.target.fetched(self.now, token, &|len| {
                        assert!(len <= from.len, "more than was fetched");
                        let bytes = memory.iter().copied().cycle();
                        let mut bytes: Vec<u8> = bytes.take(len as usize).collect();
                        bytes.resize(len as usize, 0);
                        bytes
                    })
                }
                Step::Execute { token, namespace, io, .. } => {
                    let outcome = self.check(token, namespace, &io, in_capsule);
                    self.target.executed(token, outcome)
                }
                Step::Respond(response) => {
                    if let Some(Output::Bytes(bytes, remote)) = &response.output {
                        let data = self.links[&response.token.queue].data;
                        assert!(bytes.len() == remote.len as usize && remote.len <= data);
                    }
                    let Token { queue, slot } = response.token;
                    self.target.sent(response.token);
                    assert!(self.free.insert((queue, slot)), "a slot was answered twice");
                    return;
                }
                Step::Disconnect { queue, .. } => return self.close(queue),
            };
        }
    }

    fn close(&mut self, queue: QueueId) {
        self.links.remove(&queue);
        self.free.retain(|(of, _)| *of != queue);
        self.target.closed(queue);
    }

    /// Every access lies inside the namespace, the slot and the capsule.
    fn check(
        &self,
        token: Token,
        namespace: u32,
        io: &Io,
        in_capsule: usize,
    ) -> Result<(), IoError> {
        let size = BLOCKS << BLOCK_SHIFT;
        assert!(namespace == 1 || (namespace == ALL_NAMESPACES && *io == Io::Flush));
        let transfer = |offset: u64, len: u32| {
            assert!(len <= self.links[&token.queue].data && offset + u64::from(len) <= size);
        };
        match io {
            Io::Read { offset, len } => transfer(*offset, *len),
            Io::Write { offset, len, from } | Io::Compare { offset, len, with: from } => {
                transfer(*offset, *len);
                if let Source::Capsule(at) = from {
                    assert!(*at as usize + *len as usize <= in_capsule, "beyond the capsule");
                }
            }
            Io::WriteZeroes(range) => assert!(range.start <= range.end && range.end <= size),
            Io::Deallocate(ranges) => {
                assert!(ranges.iter().all(|one| one.start <= one.end && one.end <= size));
            }
            Io::Flush => {}
        }
        if token.slot % 3 == 2 { Err(IoError::Differs) } else { Ok(()) }
    }

    fn connect(&mut self, queue: u16, controller: u16) -> Option<QueueId> {
        let request = QueueRequest { queue, receives: 16, sends: 15, controller };
        let id = self.request(&request.write())?;
        let data =
            ConnectData { host_id: [1; 16], controller, subsystem: name(), host: name() }.write();
        let mut command = Command::new(admin::FABRICS, 1);
        command.dwords[..2].copy_from_slice(&[u32::from(queue) << 16, 15]);
        let remote = Remote { len: CONNECT_DATA_LEN as u32, ..Remote::default() };
        command.descriptor = DataPointer::Keyed { remote, invalidate: false }.write();
        self.send(id, &command.write(), &data);
        Some(id)
    }
}

/// Capsules of a host on the admin queue and on an I/O queue of a controller, and requests for
/// further queues. Each record has a byte for its kind, two for its length, and its bytes.
pub fn nvme_commands(data: &[u8]) {
    let mut driver = Driver {
        target: Target::new(config()),
        now: Instant::ZERO,
        links: BTreeMap::new(),
        free: BTreeSet::new(),
    };
    let mut queues: Vec<QueueId> = driver.connect(0, DYNAMIC_CONTROLLER).into_iter().collect();
    let mut enable = Command::new(admin::FABRICS, 0);
    enable.dwords[1] = 0x14;
    enable.set_quad(2, ENABLED);
    driver.send(queues[0], &enable.write(), &[]);
    queues.extend(driver.connect(1, 1));
    let mut rest = data;
    for _ in 0..STEPS_MAX {
        let Some((&[kind, l0, l1], after)) = rest.split_first_chunk() else { break };
        let len = usize::from(u16::from_le_bytes([l0, l1])).min(after.len());
        let (record, after) = after.split_at(len);
        rest = after;
        match kind {
            0xf0..=0xf7 => queues.extend(driver.request(record)),
            0xf8..=0xfb => driver.now += Duration::from_ms(u64::from(l0) << 8),
            0xfc..=0xff => driver.close(queues[usize::from(l0) % queues.len()]),
            kind => driver.send(queues[usize::from(kind) % queues.len()], record, after),
        }
        driver.target.expire(driver.now);
        driver.drain();
        assert!(driver.target.hosts().count() <= 4);
    }
}

/// Responses of a controller to a host's bring-up and to its operations. Each record has two bytes
/// for the command that it answers, 14 further ones of a response, and data.
pub fn nvme_responses(data: &[u8]) {
    let Some((&first, mut rest)) = data.split_first() else { return };
    let goal = if first & 1 == 0 { Goal::Queues(4) } else { Goal::Discovery };
    let identity = Identity { host_id: [1; 16], host: name(), subsystem: name() };
    let mut admin = Admin::new(identity.clone(), goal, Duration::from_ms(1000));
    let mut io: IoQueue<u32> = IoQueue::new(1, 4, 1024);
    let mut sent: Vec<u16> = Vec::new();
    let id = |command: &[u8; SQE_LEN]| u16::from_le_bytes([command[2], command[3]]);
    let connect = io.connect(&identity, 1, |_| Remote::default());
    sent.extend(connect.map(|one| id(&one.command)));
    let mut now = Instant::ZERO;
    for step in 0..STEPS_MAX {
        now += Duration::from_ms(15);
        let Some((head, after)) = rest.split_first_chunk::<16>() else { break };
        rest = after;
        let kind = if head[0] & 1 == 0 { OperationKind::Read } else { OperationKind::Write };
        let bytes = u32::from(head[1]) << 9;
        let operation = Operation { kind, namespace: 1, block: 0, blocks: 1, bytes };
        if let Ok(submission) = io.submit(&operation, step as u32, |_| Remote::default()) {
            assert!(submission.in_capsule <= bytes.min(1024));
            sent.push(id(&submission.command));
        }
        let mut of_io = *head;
        if let Some(id) = sent.get(usize::from(head[12]) % (sent.len() + 1)) {
            of_io[12..14].copy_from_slice(&id.to_le_bytes());
        }
        let _ = io.completed(&of_io);
        assert!(io.outstanding() <= 4);
        let Ok(Some(command)) = admin.poll_command(now, |_| Remote::default()) else { break };
        assert!(command.slot < Admin::DEPTH && command.data.len() <= 4096);
        let mut of_admin = *head;
        if head[15] & 0x80 == 0 {
            of_admin[12..14].copy_from_slice(&id(&command.command).to_le_bytes());
            of_admin[14..].fill(0);
        }
        let memory = |_: u16, len: usize| {
            let mut bytes = after[..after.len().min(len)].to_vec();
            bytes.resize(len, 0);
            bytes
        };
        if admin.completed(now, &of_admin, memory).is_err() {
            break;
        }
        assert!(admin.progress().entries.len() <= STEPS_MAX);
    }
}
