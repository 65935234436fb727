//! Hosts that are refused, that find subsystems, and that misbehave.

use crate::world::{LIMIT, World, host, load, nqn, served, settings, to};
use longhaul_nvme::host::{HostError, Operation, OperationKind};
use longhaul_nvme::target::Hosts;
use longhaul_nvme::{
    CONNECT_DATA_LEN, Command, Completion, Configuration, ConnectData, DYNAMIC_CONTROLLER,
    DataPointer, Nqn, QueueRequest, RefusalReason, Remote, Status, SubsystemKind, admin, feature,
};
use longhaul_rdma::{
    Access, CompletionOp, CompletionQueue, Connection, Device, MemoryRegion, PathSettings,
    QueuePair, QueuePairSettings, SendOp,
};
use longhaul_storage::host::{Association, AssociationError, discover};
use longhaul_storage::load as loads;
use longhaul_storage::medium::Medium;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const BYTES: u64 = 1 << 20;

fn memory() -> longhaul_storage::target::Served {
    served(Medium::memory(BYTES as usize), BYTES)
}

#[test]
fn discovery_names_the_subsystem_at_the_address_of_the_target() {
    let world = World::new(settings(vec![memory()]));
    let entries = discover(&world.host, &host("a", Nqn::discovery())).unwrap();
    let found: Vec<_> = entries.iter().map(|one| (one.kind, one.subsystem.clone())).collect();
    let expected =
        [(SubsystemKind::Discovery, Nqn::discovery()), (SubsystemKind::Nvm, nqn("disk"))];
    assert_eq!(found, expected);
    for entry in entries {
        assert_eq!(format!("{}:{}", entry.address, entry.service), to().to_string());
    }
}

#[test]
fn strangers_and_wrong_names_are_refused_with_a_status() {
    let hosts = Hosts::Only(BTreeSet::from([nqn("friend")]));
    let world =
        World::new(longhaul_storage::target::Settings { hosts, ..settings(vec![memory()]) });
    let status = |name: &str, subsystem: &str| match Association::connect(
        &world.host,
        &host(name, nqn(subsystem)),
        1,
    ) {
        Ok(association) => {
            association.end().unwrap();
            Status::SUCCESS.code()
        }
        Err(error) => error.connect_status().unwrap_or_else(|| panic!("{error}")).code(),
    };
    assert_eq!(status("stranger", "disk"), Status::CONNECT_INVALID_HOST.code());
    assert_eq!(status("friend", "other"), Status::CONNECT_INVALID_PARAMETERS.code());
    assert_eq!(status("friend", "disk"), Status::SUCCESS.code());
}

/// A queue of a host that builds its capsules itself.
struct Raw {
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    connection: Connection,
}

impl Raw {
    fn connect(device: &Device, private_data: &[u8]) -> Result<Self, longhaul_rdma::RdmaError> {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(64).unwrap();
        let qp = device.create_qp(&pd, &cq, &cq, &QueuePairSettings::default()).unwrap();
        let path = PathSettings::default();
        qp.initialize(&path).unwrap();
        let all = Access::LOCAL_WRITE.and(Access::REMOTE_READ).and(Access::REMOTE_WRITE);
        let region = pd.register(8192, all).unwrap();
        qp.post_recv(1, &[region.piece(4096, 16)]).unwrap();
        let connection = device.connect_with(&qp, to(), &path, private_data, LIMIT)?;
        Ok(Raw { qp, cq, region, connection })
    }

    fn send(&self, capsule: &[u8]) {
        self.region.write(0, capsule);
        let op = SendOp::Send { immediate: None, invalidate: None };
        self.qp.post_send(2, op, &[self.region.piece(0, capsule.len() as u32)]).unwrap();
    }

    fn received(&self) -> longhaul_rdma::Completion {
        loop {
            let completion = self.cq.next(LIMIT).unwrap();
            if completion.op == CompletionOp::Recv {
                return completion;
            }
        }
    }

    /// Sends a command that must succeed, and returns its result.
    fn exchange(&self, command: &Command) -> u64 {
        self.send(&command.write());
        assert_eq!(self.received().status, longhaul_rdma::Status::Success);
        let completion = Completion::read(&self.region.to_vec(4096, 16)).unwrap();
        assert_eq!(completion.status, Status::SUCCESS);
        self.qp.post_recv(1, &[self.region.piece(4096, 16)]).unwrap();
        completion.result
    }

    fn wait_for_end(&self) {
        let begun = Instant::now();
        while !self.connection.has_ended() {
            assert!(begun.elapsed() < LIMIT, "the connection does not end");
            // The polling drives the device.
            self.cq.poll(8, |_| {}).unwrap();
        }
    }
}

fn admin_request() -> [u8; 32] {
    QueueRequest { queue: 0, receives: 8, sends: 7, controller: 0 }.write()
}

/// A Connect command for a queue of a controller.
fn connect(raw: &Raw, queue: u16, controller: u16) -> Command {
    let data =
        ConnectData { host_id: [3; 16], controller, subsystem: nqn("disk"), host: nqn("raw") };
    raw.region.write(1024, &data.write());
    let remote = Remote {
        address: raw.region.address(1024),
        rkey: raw.region.rkey(),
        len: CONNECT_DATA_LEN as u32,
    };
    let mut command = Command::new(admin::FABRICS, 1);
    command.id = 0x77;
    command.dwords[..2].copy_from_slice(&[u32::from(queue) << 16, 7]);
    command.descriptor = DataPointer::Keyed { remote, invalidate: false }.write();
    command
}

/// An admin queue and an I/O queue of one host, without a keep-alive.
fn both_queues(world: &World) -> [Raw; 2] {
    let admin_queue = Raw::connect(&world.host, &admin_request()).unwrap();
    let controller = admin_queue.exchange(&connect(&admin_queue, 0, DYNAMIC_CONTROLLER)) as u16;
    let mut enable = Command::new(admin::FABRICS, 0);
    enable.dwords[1] = 0x14;
    enable.set_quad(2, Configuration::ENABLED.0.into());
    admin_queue.exchange(&enable);
    let request = QueueRequest { queue: 1, receives: 8, sends: 7, controller };
    let io_queue = Raw::connect(&world.host, &request.write()).unwrap();
    io_queue.exchange(&connect(&io_queue, 1, controller));
    [admin_queue, io_queue]
}

#[test]
fn the_end_of_an_admin_queue_ends_the_others_at_once() {
    let world = World::new(settings(vec![memory()]));
    let [admin_queue, io_queue] = both_queues(&world);
    assert!(!io_queue.connection.has_ended());
    drop(admin_queue);
    io_queue.wait_for_end();
}

#[test]
fn a_host_that_is_silent_loses_all_its_queues() {
    let world = World::new(settings(vec![memory()]));
    let queues = both_queues(&world);
    let mut keep_alive = Command::new(admin::SET_FEATURES, 0);
    keep_alive.dwords[..2].copy_from_slice(&[feature::KEEP_ALIVE.into(), 200]);
    queues[0].send(&keep_alive.write());
    queues.iter().for_each(Raw::wait_for_end);
}

#[test]
fn the_silence_of_a_target_ends_the_jobs_of_its_host() {
    let world = World::new(settings(vec![memory()]));
    let impatient = longhaul_storage::host::Settings {
        keep_alive: Duration::from_secs(3),
        ..host("a", nqn("disk"))
    };
    let association = Association::connect(&world.host, &impatient, 1).unwrap();
    let mut queue = association.queue(1, 4, 4096).unwrap();
    let _silent = world.fall_silent();
    let read =
        Operation { kind: OperationKind::Read, namespace: 1, block: 0, blocks: 8, bytes: 4096 };
    assert!(queue.submit(&read, ()));
    let end = loop {
        if let Err(end) = queue.wait(|_, answer| panic!("{answer:?}")) {
            break end;
        }
    };
    let is_told = matches!(&end, AssociationError::Ended(cause) if matches!(
        &**cause,
        AssociationError::Controller(HostError::Silent("Keep Alive"))
    ));
    assert!(is_told, "{end}");
    assert!(matches!(association.end(), Err(AssociationError::Ended(_))));
}

#[test]
fn a_response_invalidates_the_key_that_the_host_names() {
    let world = World::new(settings(vec![memory()]));
    let raw = Raw::connect(&world.host, &admin_request()).unwrap();
    let mut command = connect(&raw, 0, DYNAMIC_CONTROLLER);
    command.descriptor[15] = 0x4f;
    raw.send(&command.write());
    let received = raw.received();
    assert_eq!((received.invalidated, received.byte_len), (Some(raw.region.rkey()), 16));
    let completion = Completion::read(&raw.region.to_vec(4096, 16)).unwrap();
    assert_eq!((completion.status, completion.id), (Status::SUCCESS, 0x77));
}

#[test]
fn hosts_that_misbehave_lose_their_connection_and_no_other() {
    let world = World::new(settings(vec![memory()]));
    let good = Association::connect(&world.host, &host("a", nqn("disk")), 1).unwrap();
    // Private data of another protocol, and a capsule that is none.
    let refused = Raw::connect(&world.host, &[0xff; 32]);
    assert!(matches!(refused, Err(longhaul_rdma::RdmaError::Refused(_))));
    for capsule in [&[0_u8; 3][..], &[0xff; 64]] {
        let raw = Raw::connect(&world.host, &admin_request()).unwrap();
        raw.send(capsule);
        let begun = Instant::now();
        while !raw.connection.has_ended() {
            assert!(begun.elapsed() < LIMIT, "the target lets {capsule:?} pass");
            raw.cq.poll(8, |_| {}).unwrap();
        }
    }
    let outcome = loads::run(&good, &load("randrw", 4096, 100), &AtomicBool::new(false)).unwrap();
    assert_eq!((outcome.mismatches, outcome.verified > 0), (0, true));
    let more = good.queue::<()>(9, 4, 512);
    assert!(matches!(
        more.err(),
        Some(AssociationError::Refused { queue: 9, reason: RefusalReason::Queue, .. })
    ));
}
