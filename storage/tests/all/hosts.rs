//! Hosts that are refused, that find subsystems, and that misbehave.

use crate::world::{LIMIT, World, host, load, nqn, served, settings, to};
use longhaul_nvme::target::Hosts;
use longhaul_nvme::{
    CONNECT_DATA_LEN, Command, Completion, ConnectData, DYNAMIC_CONTROLLER, DataPointer, Nqn,
    QueueRequest, RefusalReason, Remote, Status, SubsystemKind, admin,
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
    _connection: Connection,
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
        Ok(Raw { qp, cq, region, _connection: connection })
    }

    fn send(&self, capsule: &[u8]) {
        self.region.write(0, capsule);
        let op = SendOp::Send { immediate: None, invalidate: None };
        self.qp.post_send(2, op, &[self.region.piece(0, capsule.len() as u32)]).unwrap();
    }
}

fn admin_request() -> [u8; 32] {
    QueueRequest { queue: 0, receives: 8, sends: 7, controller: 0 }.write()
}

#[test]
fn a_response_invalidates_the_key_that_the_host_names() {
    let world = World::new(settings(vec![memory()]));
    let raw = Raw::connect(&world.host, &admin_request()).unwrap();
    let data = ConnectData {
        host_id: [3; 16],
        controller: DYNAMIC_CONTROLLER,
        subsystem: nqn("disk"),
        host: nqn("raw"),
    };
    raw.region.write(1024, &data.write());
    let remote = Remote {
        address: raw.region.address(1024),
        rkey: raw.region.rkey(),
        len: CONNECT_DATA_LEN as u32,
    };
    let mut command = Command::new(admin::FABRICS, 1);
    command.id = 0x77;
    command.dwords[1] = 7;
    command.descriptor = DataPointer::Keyed { remote, invalidate: true }.write();
    raw.send(&command.write());
    let received = loop {
        let completion = raw.cq.next(LIMIT).unwrap();
        if completion.op == CompletionOp::Recv {
            break completion;
        }
    };
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
        while !raw._connection.has_ended() && raw.cq.poll(8, |_| {}).unwrap() == 0 {}
    }
    let outcome = loads::run(&good, &load("randrw", 4096, 100), &AtomicBool::new(false)).unwrap();
    assert_eq!((outcome.mismatches, outcome.verified > 0), (0, true));
    let more = good.queue::<()>(9, 4, 512);
    assert!(matches!(
        more.err(),
        Some(AssociationError::Refused { queue: 9, reason: RefusalReason::Queue, .. })
    ));
}
