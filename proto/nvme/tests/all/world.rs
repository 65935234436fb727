//! A driver of a target in memory, and connections without loss.

use longhaul_nvme::target::{
    ALL_NAMESPACES, Capsule, EndReason, Hosts, Io, IoError, Namespace, Output, QueueId, Response,
    Source, Step, Subsystem, Target, TargetConfig, Token,
};
use longhaul_nvme::{Nqn, RefusalReason, Remote, SQE_LEN};
use longhaul_units::{Duration, Instant, RKey};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

pub const BLOCK_SHIFT: u8 = 9;
pub const BLOCKS: u64 = 256;
pub const NAMESPACE: u32 = 1;
/// Address of every region of a host's memory.
pub const BASE: u64 = 0x1000;

pub fn nqn(name: &str) -> Nqn {
    format!("nqn.2026-01.org.example:{name}").parse().unwrap()
}

pub fn local() -> SocketAddr {
    "10.77.0.2:4420".parse().unwrap()
}

pub fn config() -> TargetConfig {
    let namespace =
        Namespace { blocks: BLOCKS, block_shift: BLOCK_SHIFT, id: [9; 16], volatile_cache: true };
    let subsystem = |name: &str, hosts| Subsystem {
        nqn: nqn(name),
        serial: "0001".to_owned(),
        model: "Longhaul".to_owned(),
        hosts,
        namespaces: BTreeMap::from([(NAMESPACE, namespace)]),
    };
    TargetConfig {
        subsystems: vec![
            subsystem("open", Hosts::Any),
            subsystem("closed", Hosts::Only(BTreeSet::from([nqn("friend")]))),
        ],
        queues_max: 4,
        entries_max: 64,
        in_capsule: 1024,
        transfer_max: 16 << 10,
        controllers_max: 8,
        connections_max: 16,
    }
}

/// Memory of a host, by key.
#[derive(Default)]
pub struct HostMemory {
    regions: BTreeMap<u32, Vec<u8>>,
}

impl HostMemory {
    pub fn region(&mut self, key: u32, len: usize) -> Remote {
        self.regions.insert(key, vec![0; len]);
        Remote { address: BASE, rkey: RKey(key), len: len as u32 }
    }

    pub fn write(&mut self, remote: Remote, bytes: &[u8]) -> bool {
        let Some(place) = self.at(remote, bytes.len()) else { return false };
        place.copy_from_slice(bytes);
        true
    }

    pub fn read(&mut self, remote: Remote, len: usize) -> Option<Vec<u8>> {
        self.at(remote, len).map(|bytes| bytes.to_vec())
    }

    pub fn contains(&self, key: RKey) -> bool {
        self.regions.contains_key(&key.0)
    }

    fn at(&mut self, remote: Remote, len: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(remote.address.checked_sub(BASE)?).ok()?;
        self.regions.get_mut(&remote.rkey.0)?.get_mut(start..start.checked_add(len)?)
    }
}

struct Connection {
    /// Buffers of the slots; `None` while a slot has no receive posted.
    slots: Vec<Vec<u8>>,
    free: Vec<u16>,
}

/// A target with its namespaces in memory.
pub struct World {
    pub target: Target,
    pub now: Instant,
    pub blocks: BTreeMap<(usize, u32), Vec<u8>>,
    pub memory: HostMemory,
    pub ended: BTreeMap<QueueId, EndReason>,
    /// Responses that wait for their hosts.
    pub responses: Vec<(QueueId, [u8; 16], Option<RKey>)>,
    /// The next executions fail so.
    pub fault: Option<IoError>,
    /// The latest execution went past volatile caches.
    pub durable: bool,
    /// Flushes of all namespaces.
    pub flushes: u32,
    connections: BTreeMap<QueueId, Connection>,
}

impl World {
    pub fn new(config: TargetConfig) -> Self {
        let mut blocks = BTreeMap::new();
        for (id, subsystem) in config.subsystems.iter().enumerate() {
            for (number, namespace) in &subsystem.namespaces {
                let bytes = (namespace.blocks << namespace.block_shift) as usize;
                blocks.insert((id, *number), vec![0; bytes]);
            }
        }
        World {
            target: Target::new(config),
            now: Instant::ZERO + Duration::from_ms(1),
            blocks,
            memory: HostMemory::default(),
            ended: BTreeMap::new(),
            responses: Vec::new(),
            fault: None,
            durable: false,
            flushes: 0,
            connections: BTreeMap::new(),
        }
    }

    pub fn connect(&mut self, private_data: &[u8]) -> Result<QueueId, RefusalReason> {
        let accepted = self.target.request(self.now, local(), private_data)?;
        let slots = vec![vec![0; accepted.data as usize]; accepted.slots.into()];
        let free = (0..accepted.slots).collect();
        self.connections.insert(accepted.queue, Connection { slots, free });
        Ok(accepted.queue)
    }

    pub fn is_connected(&self, queue: QueueId) -> bool {
        self.connections.contains_key(&queue)
    }

    /// A capsule arrives. `false` if the connection is gone.
    pub fn send(&mut self, queue: QueueId, capsule: &[u8]) -> bool {
        let Some(slot) = self.connections.get_mut(&queue).and_then(|one| one.free.pop()) else {
            return false;
        };
        let token = Token { queue, slot };
        let data = |at: u32, len: u32| {
            let at = SQE_LEN + at as usize;
            capsule[at..at + len as usize].to_vec()
        };
        let head = &capsule[..capsule.len().min(SQE_LEN)];
        let arrived = Capsule { head, len: capsule.len() as u32, data: &data };
        let step = self.target.receive(self.now, token, &arrived);
        self.carry_out(step, &capsule[head.len()..]);
        self.drain();
        true
    }

    pub fn advance(&mut self, by: Duration) {
        self.now += by;
        self.target.expire(self.now);
        self.drain();
    }

    pub fn drain(&mut self) {
        while let Some(step) = self.target.poll_step() {
            self.carry_out(step, &[]);
        }
    }

    pub fn close(&mut self, queue: QueueId) {
        self.connections.remove(&queue);
        self.target.closed(queue);
    }

    fn carry_out(&mut self, first: Step, in_capsule: &[u8]) {
        let mut step = first;
        loop {
            step = match step {
                Step::Nothing => return,
                Step::Fetch { token, from } => {
                    let len = from.len as usize;
                    match self.memory.read(from, len) {
                        Some(bytes) if bytes.len() <= self.buffer(token).len() => {
                            self.buffer(token)[..len].copy_from_slice(&bytes);
                            let copy = |len: u32| bytes[..len as usize].to_vec();
                            self.target.fetched(self.now, token, &copy)
                        }
                        Some(_) => panic!("a fetch that exceeds the slot's buffer"),
                        // As a device: a READ outside the host's memory ends the connection.
                        None => return self.fail(token.queue),
                    }
                }
                Step::Execute { token, subsystem, namespace, io, durable } => {
                    self.durable = durable;
                    let outcome = match self.fault {
                        Some(error) => Err(error),
                        None => self.execute(token, (subsystem, namespace), io, in_capsule),
                    };
                    self.target.executed(token, outcome)
                }
                Step::Respond(response) => return self.respond(response),
                Step::Disconnect { queue, reason } => {
                    self.ended.insert(queue, reason);
                    return self.close(queue);
                }
            };
        }
    }

    fn fail(&mut self, queue: QueueId) {
        self.close(queue);
        self.drain();
    }

    fn buffer(&mut self, token: Token) -> &mut Vec<u8> {
        let connection = self.connections.get_mut(&token.queue).expect("a connection");
        &mut connection.slots[usize::from(token.slot)]
    }

    fn respond(&mut self, response: Response) {
        let Response { token, completion, invalidate, output } = response;
        let (bytes, remote) = match output {
            Some(Output::Bytes(bytes, remote)) => (bytes, remote),
            Some(Output::Buffer(remote)) => {
                (self.buffer(token)[..remote.len as usize].to_vec(), remote)
            }
            None => (Vec::new(), Remote::default()),
        };
        assert_eq!(bytes.len(), remote.len as usize);
        if !bytes.is_empty() && !self.memory.write(remote, &bytes) {
            return self.fail(token.queue);
        }
        if let Some(key) = invalidate
            && self.memory.regions.remove(&key.0).is_none()
        {
            return self.fail(token.queue);
        }
        self.responses.push((token.queue, completion, invalidate));
        self.target.sent(token);
        let connection = self.connections.get_mut(&token.queue).expect("a connection");
        assert!(!connection.free.contains(&token.slot), "a slot was answered twice");
        connection.free.push(token.slot);
    }

    fn execute(
        &mut self,
        token: Token,
        at: (usize, u32),
        io: Io,
        in_capsule: &[u8],
    ) -> Result<(), IoError> {
        if at.1 == ALL_NAMESPACES {
            assert_eq!(io, Io::Flush);
            self.flushes += 1;
            return Ok(());
        }
        let source = |world: &mut World, from: Source, len: u32| match from {
            Source::Buffer => world.buffer(token)[..len as usize].to_vec(),
            Source::Capsule(at) => in_capsule[at as usize..][..len as usize].to_vec(),
        };
        match io {
            Io::Read { offset, len } => {
                let bytes = self.blocks[&at][offset as usize..][..len as usize].to_vec();
                self.buffer(token)[..len as usize].copy_from_slice(&bytes);
            }
            Io::Write { offset, len, from } => {
                let bytes = source(self, from, len);
                let blocks = self.blocks.get_mut(&at).unwrap();
                blocks[offset as usize..][..len as usize].copy_from_slice(&bytes);
            }
            Io::Compare { offset, len, with } => {
                let bytes = source(self, with, len);
                if self.blocks[&at][offset as usize..][..len as usize] != bytes {
                    return Err(IoError::Differs);
                }
            }
            Io::WriteZeroes(range) => {
                let blocks = self.blocks.get_mut(&at).unwrap();
                blocks[range.start as usize..range.end as usize].fill(0);
            }
            Io::Deallocate(ranges) => {
                let blocks = self.blocks.get_mut(&at).unwrap();
                for range in ranges {
                    blocks[range.start as usize..range.end as usize].fill(0);
                }
            }
            Io::Flush => {}
        }
        Ok(())
    }
}
