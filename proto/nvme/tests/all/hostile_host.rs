//! A target against hosts that send anything.

use crate::world::{BLOCK_SHIFT, NAMESPACE, World, config, local, nqn};
use longhaul_nvme::target::{EndReason, QueueId};
use longhaul_nvme::{
    CONNECT_DATA_LEN, Command, Completion, ConnectData, DYNAMIC_CONTROLLER, DataPointer,
    QueueRequest, Remote, Status, admin, io,
};
use longhaul_units::{Duration, RKey};
use proptest::collection::vec;
use proptest::prelude::*;

fn connect(queue: u16, controller: u16) -> Vec<u8> {
    let mut command = Command::new(admin::FABRICS, 1);
    command.id = 1;
    command.dwords = [u32::from(queue) << 16, 7, 0, 0, 0, 0];
    command.descriptor = DataPointer::InCapsule { offset: 0, len: CONNECT_DATA_LEN as u32 }.write();
    let data =
        ConnectData { host_id: [1; 16], controller, subsystem: nqn("open"), host: nqn("host") };
    [command.write().to_vec(), data.write()].concat()
}

/// The response to one command.
pub fn exchange(world: &mut World, queue: QueueId, capsule: &[u8]) -> Completion {
    assert!(world.send(queue, capsule));
    let [(of, bytes, _)] = std::mem::take(&mut world.responses)[..] else { panic!("no response") };
    assert_eq!(of, queue);
    Completion::read(&bytes).unwrap()
}

pub fn admin_queue(world: &mut World) -> (QueueId, u16) {
    let request = QueueRequest { queue: 0, receives: 8, sends: 7, controller: 0 };
    let queue = world.connect(&request.write()).unwrap();
    let connected = exchange(world, queue, &connect(0, DYNAMIC_CONTROLLER));
    assert_eq!(connected.status, Status::SUCCESS);
    (queue, connected.result as u16)
}

pub fn enable(world: &mut World, queue: QueueId) {
    let mut command = Command::new(admin::FABRICS, 0);
    command.dwords[1] = 0x14;
    command.set_quad(2, 0x0046_0001);
    assert_eq!(exchange(world, queue, &command.write()).status, Status::SUCCESS);
}

pub fn io_queue(world: &mut World) -> QueueId {
    let (admin, controller) = admin_queue(world);
    enable(world, admin);
    let request = QueueRequest { queue: 1, receives: 8, sends: 7, controller };
    let queue = world.connect(&request.write()).unwrap();
    let connected = exchange(world, queue, &connect(1, controller));
    assert_eq!(connected.status, Status::SUCCESS);
    queue
}

pub fn write(len: u32, pointer: DataPointer) -> Command {
    let mut command = Command::new(io::WRITE, NAMESPACE);
    command.id = 5;
    command.dwords[2] = (len >> BLOCK_SHIFT) - 1;
    command.descriptor = pointer.write();
    command
}

#[test]
fn data_pointers_are_checked_against_command_and_capsule() {
    let mut world = World::new(config());
    let queue = io_queue(&mut world);
    let inside = |offset, len| DataPointer::InCapsule { offset, len };
    let keyed = |len| DataPointer::Keyed {
        remote: Remote { address: 0, rkey: RKey(1), len },
        invalidate: false,
    };
    let mut unknown = write(512, keyed(512));
    unknown.descriptor[15] = 0x30;
    let mut by_pages = write(512, inside(0, 512));
    by_pages.flags = 0;
    let mut fused = write(512, inside(0, 512));
    fused.flags |= 1;
    for (command, data, status) in [
        (write(512, inside(0, 512)), 512, Status::SUCCESS),
        (write(512, inside(64, 512)), 576, Status::SUCCESS),
        (write(512, inside(0, 512)), 511, Status::INVALID_DATA_LENGTH),
        (write(512, inside(0, 512)), 0, Status::INVALID_DATA_LENGTH),
        (write(512, inside(600, 512)), 512, Status::INVALID_SGL_OFFSET),
        (write(512, inside(u64::MAX, 512)), 512, Status::INVALID_SGL_OFFSET),
        (write(512, inside(0, 1024)), 1024, Status::INVALID_DATA_LENGTH),
        (write(1024, keyed(512)), 0, Status::INVALID_DATA_LENGTH),
        (write(32 << 10, keyed(32 << 10)), 0, Status::INVALID_FIELD),
        (unknown, 0, Status::INVALID_SGL_TYPE),
        (by_pages, 512, Status::INVALID_FIELD),
        (fused, 512, Status::INVALID_FIELD),
        (Command::new(0xee, NAMESPACE), 0, Status::INVALID_OPCODE),
        (Command::new(io::READ, 2), 0, Status::INVALID_NAMESPACE),
        (Command::new(io::READ, 0xffff_ffff), 0, Status::INVALID_NAMESPACE),
        (Command::new(admin::FABRICS, 1), 0, Status::SEQUENCE_ERROR),
    ] {
        let capsule = [command.write().to_vec(), vec![0; data]].concat();
        let completion = exchange(&mut world, queue, &capsule);
        assert_eq!(completion.status.code(), status.code(), "{command:?} with {data} bytes");
        assert_eq!((completion.id, completion.queue), (command.id, 1));
    }
}

#[test]
fn memory_that_the_host_does_not_have_ends_its_connection() {
    let mut world = World::new(config());
    let queue = io_queue(&mut world);
    let remote = Remote { address: 0, rkey: RKey(0xdead), len: 512 };
    let pointer = DataPointer::Keyed { remote, invalidate: false };
    world.send(queue, &write(512, pointer).write());
    assert!(!world.is_connected(queue) && world.responses.is_empty());
}

#[test]
fn the_requested_key_is_invalidated() {
    let mut world = World::new(config());
    let queue = io_queue(&mut world);
    let remote = world.memory.region(77, 512);
    let pointer = DataPointer::Keyed { remote, invalidate: true };
    world.send(queue, &write(512, pointer).write());
    let [(_, _, invalidated)] = world.responses[..] else { panic!("{:?}", world.responses) };
    assert_eq!(invalidated, Some(RKey(77)));
    assert!(!world.memory.contains(RKey(77)));
}

#[test]
fn before_connect_no_other_command_is_executed() {
    let mut world = World::new(config());
    let request = QueueRequest { queue: 0, receives: 8, sends: 7, controller: 0 };
    let queue = world.connect(&request.write()).unwrap();
    for opcode in [admin::IDENTIFY, io::READ, admin::ASYNC_EVENT, admin::KEEP_ALIVE] {
        let completion = exchange(&mut world, queue, &Command::new(opcode, 0).write());
        assert_eq!(completion.status.code(), Status::SEQUENCE_ERROR.code());
    }
    let mut other_queue = connect(1, DYNAMIC_CONTROLLER);
    let completion = exchange(&mut world, queue, &other_queue);
    assert_eq!(completion.status.code(), Status::CONNECT_INVALID_PARAMETERS.code());
    assert_eq!(completion.result, 42, "offset of the queue in the command");
    other_queue[40] = 1;
    let completion = exchange(&mut world, queue, &other_queue);
    assert_eq!(completion.status.code(), Status::CONNECT_INCOMPATIBLE_FORMAT.code());
    let completion = exchange(&mut world, queue, &connect(0, 3));
    assert_eq!(completion.result, 16 | 1 << 16, "offset of the controller in the data");
}

#[test]
fn an_io_queue_needs_a_ready_controller_of_its_host() {
    let mut world = World::new(config());
    let (admin, controller) = admin_queue(&mut world);
    let request = QueueRequest { queue: 1, receives: 8, sends: 7, controller };
    let queue = world.connect(&request.write()).unwrap();
    let early = exchange(&mut world, queue, &connect(1, controller));
    assert_eq!(early.status.code(), Status::SEQUENCE_ERROR.code());
    enable(&mut world, admin);
    let mut stranger = connect(1, controller);
    stranger[64] ^= 1;
    let refused = exchange(&mut world, queue, &stranger);
    assert_eq!(refused.status.code(), Status::CONNECT_INVALID_PARAMETERS.code());
    let absent = exchange(&mut world, queue, &connect(1, controller + 1));
    assert_eq!(absent.status.code(), Status::CONNECT_INVALID_PARAMETERS.code());
    let accepted = exchange(&mut world, queue, &connect(1, controller));
    assert_eq!(accepted.status, Status::SUCCESS);
}

#[test]
fn a_capsule_that_is_none_ends_the_connection() {
    let mut world = World::new(config());
    let queue = io_queue(&mut world);
    world.send(queue, &[0; 63]);
    assert_eq!(world.ended.get(&queue), Some(&EndReason::Malformed));
}

#[test]
fn held_event_requests_are_bounded_and_their_identifiers_taken() {
    let mut world = World::new(config());
    let (queue, _) = admin_queue(&mut world);
    enable(&mut world, queue);
    let mut command = Command::new(admin::ASYNC_EVENT, 0);
    for id in 10..14 {
        command.id = id;
        world.send(queue, &command.write());
        assert!(world.responses.is_empty());
    }
    let completion = exchange(&mut world, queue, &command.write());
    assert_eq!(completion.status.code(), Status::ID_CONFLICT.code());
    command.id = 14;
    let completion = exchange(&mut world, queue, &command.write());
    assert_eq!(completion.status.code(), Status::EVENT_LIMIT_EXCEEDED.code());
    command.id = 13;
    let completion = exchange(&mut world, queue, &command.write());
    assert_eq!(completion.status.code(), Status::ID_CONFLICT.code(), "still held");
}

/// A capsule that is nearly valid.
fn capsule() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        any::<u8>(),
        proptest::sample::select(vec![0_u8, 1, 2, 5, 6, 8, 9, 0x0a, 0x0c, 0x18, 0x7f]),
    ];
    let kind = prop_oneof![any::<u8>(), proptest::sample::select(vec![0x40_u8, 0x4f, 0x01, 0x00])];
    let small = || prop_oneof![any::<u32>(), 0..4_u32, proptest::sample::select(vec![0x14, 0x70])];
    let pointer = (0..4_u64, prop_oneof![any::<u32>(), Just(512), Just(4096)], 0..5_u32, kind);
    let dwords = [small(), small(), small(), small(), small(), small()];
    (opcode, any::<u8>(), 0..8_u16, 0..3_u32, pointer, dwords, vec(any::<u8>(), 0..1200)).prop_map(
        |(opcode, flags, id, namespace, (page, len, key, kind), dwords, data)| {
            let remote = Remote { address: page * 512 + 0x1000, rkey: RKey(key), len };
            let mut descriptor = DataPointer::Keyed { remote, invalidate: false }.write();
            if kind == 1 {
                descriptor = DataPointer::InCapsule { offset: page * 100, len }.write();
            }
            descriptor[15] = kind;
            let flags = if flags < 200 { 0x40 } else { flags };
            let command = Command { opcode, flags, id, namespace, descriptor, dwords };
            [command.write().to_vec(), data].concat()
        },
    )
}

proptest! {
    #[test]
    fn any_capsules_are_answered_or_end_the_connection(
        capsules in vec((any::<bool>(), capsule()), 1..60),
        cut in 0..64_usize,
    ) {
        let mut world = World::new(config());
        for key in 1..4 {
            world.memory.region(key, 4096);
        }
        let io = io_queue(&mut world);
        let (admin, _) = admin_queue(&mut world);
        enable(&mut world, admin);
        for (to_admin, capsule) in capsules {
            let queue = if to_admin { admin } else { io };
            let is_event = capsule[0] == admin::ASYNC_EVENT && to_admin;
            let before = world.responses.len();
            if world.send(queue, &capsule) && world.is_connected(queue) && !is_event {
                prop_assert_eq!(world.responses.len(), before + 1);
            }
        }
        world.send(admin, &vec![0xff; cut]);
        prop_assert!(!world.is_connected(admin));
        world.advance(Duration::from_ms(1_000_000));
    }

    #[test]
    fn any_private_data_is_accepted_or_refused(data in vec(any::<u8>(), 0..64)) {
        let mut world = World::new(config());
        let _ = world.target.request(world.now, local(), &data);
    }
}
