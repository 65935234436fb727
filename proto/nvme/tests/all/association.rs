//! A host and a target: bring-up, operations, events and ends.

use crate::world::{BLOCK_SHIFT, BLOCKS, NAMESPACE, World, config, nqn};
use longhaul_nvme::host::{
    Admin, Answer, Event, Goal, HostError, Identity, IoQueue, Operation, OperationKind, Submission,
};
use longhaul_nvme::target::{Capsule, EndReason, IoError, Namespace, QueueId, Step, Token};
use longhaul_nvme::{
    Command, DataPointer, IDENTIFY_LEN, Nqn, QueueRequest, RefusalReason, Remote, Status, admin,
    io, log_page,
};
use longhaul_units::{Duration, RKey, Rng, SplitMix64};
use proptest::prelude::*;

const KEEP_ALIVE: Duration = Duration::from_ms(5000);
/// Key of slot 0 of an admin queue's memory; further slots follow.
const ADMIN_KEY: u32 = 0x100;
const IO_KEY: u32 = 0x1000;
const BUFFER: usize = 16 << 10;

fn identity(host: &str, subsystem: Nqn) -> Identity {
    Identity { host_id: *b"0123456789abcdef", host: nqn(host), subsystem }
}

fn capsule(world: &mut World, submission: &Submission, remote: Remote) -> Vec<u8> {
    assert!(world.memory.write(remote, &submission.data));
    let mut capsule = submission.command.to_vec();
    capsule.extend(world.memory.read(remote, submission.in_capsule as usize).unwrap());
    capsule
}

fn responses(world: &mut World, queue: QueueId) -> Vec<[u8; 16]> {
    let (mine, others) =
        std::mem::take(&mut world.responses).into_iter().partition(|(of, ..)| *of == queue);
    world.responses = others;
    let mine: Vec<(QueueId, [u8; 16], Option<RKey>)> = mine;
    mine.into_iter().map(|(_, completion, _)| completion).collect()
}

struct AdminHost {
    admin: Admin,
    queue: QueueId,
    buffers: Vec<Remote>,
    events: Vec<Event>,
}

impl AdminHost {
    fn connect(world: &mut World, identity: Identity, goal: Goal) -> Self {
        let sends = Admin::DEPTH - 1;
        let request = QueueRequest { queue: 0, receives: Admin::DEPTH, sends, controller: 0 };
        let queue = world.connect(&request.write()).unwrap();
        let buffers = (0..u32::from(Admin::DEPTH))
            .map(|slot| world.memory.region(ADMIN_KEY + slot, IDENTIFY_LEN))
            .collect();
        let admin = Admin::new(identity, goal, KEEP_ALIVE);
        AdminHost { admin, queue, buffers, events: Vec::new() }
    }

    /// Sends what is to be sent until nothing is.
    fn turn(&mut self, world: &mut World) -> Result<(), HostError> {
        loop {
            let buffers = &self.buffers;
            let next = self.admin.poll_command(world.now, |slot| buffers[usize::from(slot)])?;
            if let Some(submission) = &next {
                let remote = self.buffers[usize::from(submission.slot)];
                let capsule = capsule(world, submission, remote);
                world.send(self.queue, &capsule);
            }
            let responses = responses(world, self.queue);
            if next.is_none() && responses.is_empty() {
                return Ok(());
            }
            for response in responses {
                let memory = &mut world.memory;
                let data = |slot: u16, len| memory.read(buffers[usize::from(slot)], len).unwrap();
                self.events.extend(self.admin.completed(world.now, &response, data)?);
            }
        }
    }

    fn up(world: &mut World, identity: Identity, goal: Goal) -> Result<Self, HostError> {
        let mut host = AdminHost::connect(world, identity, goal);
        host.turn(world)?;
        assert_eq!(host.events, [Event::Ready]);
        Ok(host)
    }
}

struct IoHost {
    io: IoQueue<usize>,
    queue: QueueId,
    buffers: Vec<Remote>,
}

impl IoHost {
    fn connect(
        world: &mut World,
        identity: &Identity,
        controller: u16,
        number: u16,
    ) -> Result<Self, HostError> {
        const DEPTH: u16 = 8;
        let request = QueueRequest { queue: number, receives: DEPTH + 1, sends: DEPTH, controller };
        let queue = world.connect(&request.write()).unwrap();
        let first = IO_KEY * u32::from(number);
        let buffers: Vec<Remote> =
            (0..DEPTH).map(|slot| world.memory.region(first + u32::from(slot), BUFFER)).collect();
        let mut io = IoQueue::new(number, DEPTH, 1024);
        let connect = io.connect(identity, controller, |slot| buffers[usize::from(slot)]).unwrap();
        let sent = capsule(world, &connect, buffers[usize::from(connect.slot)]);
        world.send(queue, &sent);
        let mut host = IoHost { io, queue, buffers };
        let answers = host.answers(world)?;
        assert!(answers.is_empty() && host.io.is_ready());
        Ok(host)
    }

    fn answers(&mut self, world: &mut World) -> Result<Vec<Answer<usize>>, HostError> {
        let mut answers = Vec::new();
        for response in responses(world, self.queue) {
            answers.extend(self.io.completed(&response)?);
        }
        Ok(answers)
    }

    /// Carries out one operation.
    fn run(
        &mut self,
        world: &mut World,
        kind: OperationKind,
        (block, blocks): (u64, u32),
        data: &[u8],
    ) -> (Status, Vec<u8>) {
        let bytes = blocks << BLOCK_SHIFT;
        let operation = Operation { kind, namespace: NAMESPACE, block, blocks, bytes };
        let buffers = &self.buffers;
        let slot = self.io.next_slot().unwrap();
        let remote = buffers[usize::from(slot)];
        assert!(world.memory.write(remote, data));
        let submission = self.io.submit(&operation, 7, |_| remote).unwrap();
        let sent = capsule(world, &submission, remote);
        assert!(world.send(self.queue, &sent));
        let mut answers = self.answers(world).unwrap();
        let answer = answers.pop().unwrap();
        assert_eq!((answer.slot, answer.context, answers.len()), (slot, 7, 0));
        (answer.status, world.memory.read(remote, bytes as usize).unwrap())
    }
}

fn association(world: &mut World) -> (AdminHost, IoHost) {
    let identity = identity("any", nqn("open"));
    let admin = AdminHost::up(world, identity.clone(), Goal::Queues(1)).unwrap();
    let controller = admin.admin.progress().controller;
    let io = IoHost::connect(world, &identity, controller, 1).unwrap();
    (admin, io)
}

#[test]
fn a_host_finds_namespaces_and_limits() {
    let mut world = World::new(config());
    let host = AdminHost::up(&mut world, identity("any", nqn("open")), Goal::Queues(99)).unwrap();
    let progress = host.admin.progress();
    assert_eq!((progress.queues, progress.entries_max), (4, 64));
    let data = progress.data.as_ref().unwrap();
    assert_eq!((data.in_capsule, data.transfer_max_code, data.volatile_cache), (1024, 2, true));
    assert_eq!((data.serial.as_str(), &data.subsystem), ("0001", &nqn("open")));
    let [namespace] = progress.namespaces[..] else { panic!("{progress:?}") };
    assert_eq!((namespace.number, namespace.data.blocks), (NAMESPACE, BLOCKS));
    assert_eq!((namespace.data.block_shift, namespace.data.nguid), (BLOCK_SHIFT, [9; 16]));
}

#[test]
fn discovery_lists_what_the_host_may_use() {
    for (host, expected) in [("any", vec!["open"]), ("friend", vec!["open", "closed"])] {
        let mut world = World::new(config());
        let identity = identity(host, Nqn::discovery());
        let found = AdminHost::up(&mut world, identity, Goal::Discovery).unwrap();
        let entries = &found.admin.progress().entries;
        assert!(
            entries
                .iter()
                .all(|one| (one.address.as_str(), one.service.as_str()) == ("10.77.0.2", "4420"))
        );
        let mut names: Vec<Nqn> = entries.iter().map(|one| one.subsystem.clone()).collect();
        assert_eq!(names.remove(0), Nqn::discovery());
        assert_eq!(names, expected.into_iter().map(nqn).collect::<Vec<_>>());
    }
}

#[test]
fn a_host_that_is_not_admitted_is_told_so() {
    let refusal = |host: &str, subsystem: &str| {
        let mut world = World::new(config());
        let identity = identity(host, nqn(subsystem));
        match AdminHost::up(&mut world, identity, Goal::Queues(1)) {
            Err(HostError::Refused { command: "Connect", status }) => status.code(),
            Err(error) => panic!("{error}"),
            Ok(_) => 0,
        }
    };
    assert_eq!(refusal("stranger", "closed"), Status::CONNECT_INVALID_HOST.code());
    assert_eq!(refusal("friend", "closed"), 0);
    assert_eq!(refusal("friend", "absent"), Status::CONNECT_INVALID_PARAMETERS.code());
}

#[test]
fn two_hosts_with_one_identifier_are_not_confused() {
    let mut world = World::new(config());
    AdminHost::up(&mut world, identity("one", nqn("open")), Goal::Queues(1)).unwrap();
    let other = AdminHost::up(&mut world, identity("two", nqn("open")), Goal::Queues(1));
    let status = Status::CONNECT_INVALID_HOST.permanent();
    assert_eq!(other.err(), Some(HostError::Refused { command: "Connect", status }));
    let mut again = AdminHost::up(&mut world, identity("one", nqn("open")), Goal::Queues(1));
    let host = again.as_mut().unwrap();
    assert_eq!(host.admin.progress().controller, 2);
}

#[test]
fn operations_have_their_effects() {
    let mut world = World::new(config());
    let (_admin, mut io) = association(&mut world);
    let data: Vec<u8> = (0..8 << BLOCK_SHIFT).map(|i| (i * 7) as u8).collect();
    for (blocks, way) in [(2, "in the capsule"), (8, "by READ")] {
        let data = &data[..blocks << BLOCK_SHIFT];
        let (at, count) = (blocks as u64, blocks as u32);
        let write = io.run(&mut world, OperationKind::Write, (at, count), data);
        assert_eq!(write.0, Status::SUCCESS, "{way}");
        let (status, read) = io.run(&mut world, OperationKind::Read, (at, count), &[]);
        assert_eq!((status, &read[..]), (Status::SUCCESS, data), "{way}");
        let (status, _) = io.run(&mut world, OperationKind::Compare, (at, count), data);
        assert_eq!(status, Status::SUCCESS, "{way}");
        let other = vec![1; data.len()];
        let (status, _) = io.run(&mut world, OperationKind::Compare, (at, count), &other);
        assert_eq!(status.code(), Status::COMPARE_FAILURE.code(), "{way}");
    }
    let flush = io.run(&mut world, OperationKind::Flush, (0, 0), &[]);
    assert_eq!(flush.0, Status::SUCCESS);
    for (kind, at) in [(OperationKind::WriteZeroes, 8), (OperationKind::Deallocate, 9)] {
        assert_eq!(io.run(&mut world, kind, (at, 1), &[]).0, Status::SUCCESS);
        let (_, read) = io.run(&mut world, OperationKind::Read, (at, 1), &[]);
        assert!(read.iter().all(|byte| *byte == 0), "{kind:?}");
    }
    let (_, beside) = io.run(&mut world, OperationKind::Read, (10, 1), &[]);
    assert_eq!(beside, data[2 << BLOCK_SHIFT..3 << BLOCK_SHIFT]);
}

#[test]
fn blocks_that_do_not_exist_are_out_of_range() {
    let mut world = World::new(config());
    let (_admin, mut io) = association(&mut world);
    for kind in [
        OperationKind::Read,
        OperationKind::Write,
        OperationKind::WriteZeroes,
        OperationKind::Deallocate,
    ] {
        for range in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
            let (status, _) = io.run(&mut world, kind, range, &[]);
            assert_eq!(status.code(), Status::LBA_OUT_OF_RANGE.code(), "{kind:?} {range:?}");
        }
    }
}

#[test]
fn a_failing_medium_has_status_codes() {
    let mut world = World::new(config());
    let (_admin, mut io) = association(&mut world);
    for (fault, status) in [
        (IoError::Read, Status::READ_ERROR),
        (IoError::Full, Status::CAPACITY_EXCEEDED),
        (IoError::Gone, Status::INVALID_NAMESPACE),
        (IoError::Write, Status::WRITE_FAULT),
    ] {
        world.fault = Some(fault);
        let (seen, _) = io.run(&mut world, OperationKind::Read, (0, 1), &[]);
        assert_eq!(seen.code(), status.code());
    }
}

#[test]
fn a_changed_namespace_is_notified_once() {
    let mut world = World::new(config());
    let (mut admin, _io) = association(&mut world);
    admin.events.clear();
    let smaller = Namespace {
        blocks: BLOCKS / 2,
        block_shift: BLOCK_SHIFT,
        id: [9; 16],
        volatile_cache: false,
    };
    for _ in 0..3 {
        world.target.set_namespace(0, NAMESPACE, Some(smaller));
        world.drain();
        admin.turn(&mut world).unwrap();
    }
    assert_eq!(admin.events, [Event::NamespacesChanged]);
}

#[test]
fn a_silent_host_loses_its_controller_and_an_idle_one_does_not() {
    let mut world = World::new(config());
    let (mut admin, io) = association(&mut world);
    for _ in 0..20 {
        world.advance(Duration::from_ms(1000));
        admin.turn(&mut world).unwrap();
    }
    assert!(world.ended.is_empty());
    // The interval in which it last sent something, and one in which it sends nothing.
    for interval in 0..2 {
        assert!(world.ended.is_empty(), "interval {interval}");
        world.now = world.target.poll_timeout().unwrap();
        world.advance(Duration::ZERO);
    }
    let reasons = [admin.queue, io.queue].map(|queue| world.ended.get(&queue).copied());
    assert_eq!(reasons, [Some(EndReason::KeepAliveExpired); 2]);
    assert_eq!(world.target.hosts().count(), 0);
    world.advance(KEEP_ALIVE);
    assert!(matches!(admin.turn(&mut world), Ok(()) | Err(HostError::Silent(_))));
}

#[test]
fn a_host_with_a_keep_alive_outstanding_waits_for_its_answer_alone() {
    let mut world = World::new(config());
    let (mut host, _io) = association(&mut world);
    let spoke = world.now;
    assert_eq!(host.admin.poll_timeout(), Some(spoke + KEEP_ALIVE.divided_by(3)));
    world.now = spoke + KEEP_ALIVE.divided_by(3);
    let buffer = host.buffers[0];
    assert!(host.admin.poll_command(world.now, |_| buffer).unwrap().is_some());
    let late = world.now + KEEP_ALIVE;
    assert_eq!(host.admin.poll_timeout(), Some(late));
    assert_eq!(host.admin.poll_command(late, |_| buffer), Err(HostError::Silent("Keep Alive")));
}

#[test]
fn a_queue_may_come_back_and_a_controller_takes_its_queues_along() {
    let mut world = World::new(config());
    let (admin, io) = association(&mut world);
    let controller = admin.admin.progress().controller;
    let identity = identity("any", nqn("open"));
    let twice = IoHost::connect(&mut world, &identity, controller, 1);
    let status = Status::SEQUENCE_ERROR.permanent();
    assert_eq!(twice.err(), Some(HostError::Refused { command: "Connect", status }));
    world.close(io.queue);
    let io = IoHost::connect(&mut world, &identity, controller, 1).unwrap();
    world.close(admin.queue);
    world.drain();
    assert_eq!(world.ended.get(&io.queue), Some(&EndReason::ControllerGone));
    assert!(!world.send(io.queue, &[0; 64]), "a command after the end");
}

#[test]
fn a_controller_that_shuts_down_flushes_and_ends_its_io_queues() {
    let mut world = World::new(config());
    let (mut admin, io) = association(&mut world);
    admin.admin.shut_down();
    admin.turn(&mut world).unwrap();
    assert_eq!((admin.events.last(), world.flushes), (Some(&Event::ShutDown), 1));
    assert_eq!(world.ended.get(&io.queue), Some(&EndReason::ControllerGone));
    assert!(world.is_connected(admin.queue));
}

#[test]
fn a_shutdown_whose_flush_fails_is_none() {
    let mut world = World::new(config());
    let (mut admin, _io) = association(&mut world);
    world.fault = Some(IoError::Write);
    admin.admin.shut_down();
    let refused = HostError::Refused { command: "Property Set (CC)", status: Status::WRITE_FAULT };
    assert_eq!(admin.turn(&mut world), Err(refused));
}

#[test]
fn an_access_of_an_ended_connection_settles_the_target_when_it_is_done() {
    let mut world = World::new(config());
    let (admin, _io) = association(&mut world);
    let flush = Command { id: 9, ..Command::new(io::FLUSH, NAMESPACE) };
    let identity = identity("any", nqn("open"));
    let controller = admin.admin.progress().controller;
    let queue = IoHost::connect(&mut world, &identity, controller, 2).unwrap().queue;
    let token = Token { queue, slot: 7 };
    let bytes = flush.write();
    let capsule = Capsule { head: &bytes, len: 64, data: &|_, _| Vec::new() };
    let step = world.target.receive(world.now, token, &capsule);
    assert!(matches!(step, Step::Execute { .. }) && !world.target.is_settling());
    world.close(queue);
    assert!(world.target.is_settling());
    assert_eq!(world.target.executed(token, Ok(())), Step::Nothing);
    assert!(!world.target.is_settling());
}

#[test]
fn the_list_of_changed_namespaces_is_cleared_unless_its_event_is_retained() {
    let mut world = World::new(config());
    let (host, _io) = association(&mut world);
    world.target.set_namespace(0, NAMESPACE, None);
    let list = world.memory.region(99, 4096);
    let mut read = |retain: u32| {
        let mut command = Command::new(admin::GET_LOG_PAGE, 0);
        command.id = 0x0fff;
        command.dwords[0] = u32::from(log_page::CHANGED_NAMESPACES) | retain << 15 | 1023 << 16;
        let remote = DataPointer::Keyed { remote: list, invalidate: false };
        command.descriptor = remote.write();
        assert!(
            world.memory.write(list, &[0xff; 4096]) && world.send(host.queue, &command.write())
        );
        world.memory.read(list, 8).unwrap()[0]
    };
    assert_eq!([1, 1, 0, 0].map(&mut read), [1, 1, 1, 0]);
}

#[test]
fn connections_are_bounded() {
    let mut world = World::new(config());
    let request = QueueRequest { queue: 0, receives: 32, sends: 31, controller: 0 };
    for _ in 0..16 {
        world.connect(&request.write()).unwrap();
    }
    assert_eq!(world.connect(&request.write()), Err(RefusalReason::Resources));
    let more = QueueRequest { queue: 5, ..request };
    assert_eq!(world.connect(&more.write()), Err(RefusalReason::Queue));
    let larger = QueueRequest { sends: 64, ..request };
    assert_eq!(world.connect(&larger.write()), Err(RefusalReason::Sends));
    world.advance(Duration::from_ms(30_000));
    assert_eq!(world.ended.len(), 16, "hosts that send no Connect");
    world.connect(&request.write()).unwrap();
}

proptest! {
    /// Reads return what was written last, whatever the sizes.
    #[test]
    fn operations_agree_with_a_model(seed in any::<u64>()) {
        let mut world = World::new(config());
        let (_admin, mut io) = association(&mut world);
        let mut model = vec![0_u8; (BLOCKS << BLOCK_SHIFT) as usize];
        let mut rng = SplitMix64::new(seed);
        for _ in 0..60 {
            let blocks = 1 + rng.below(32);
            let first = rng.below(BLOCKS - blocks + 1);
            let range = (first << BLOCK_SHIFT) as usize..((first + blocks) << BLOCK_SHIFT) as usize;
            let at = (first, blocks as u32);
            match rng.below(6) {
                0 => {
                    let (status, _) = io.run(&mut world, OperationKind::WriteZeroes, at, &[]);
                    prop_assert_eq!(status, Status::SUCCESS);
                    model[range].fill(0);
                }
                1 => {
                    let (status, _) = io.run(&mut world, OperationKind::Deallocate, at, &[]);
                    prop_assert_eq!(status, Status::SUCCESS);
                    model[range].fill(0);
                }
                2 | 3 => {
                    let data: Vec<u8> = range.clone().map(|_| rng.next_u64() as u8).collect();
                    let (status, _) = io.run(&mut world, OperationKind::Write, at, &data);
                    prop_assert_eq!(status, Status::SUCCESS);
                    model[range].copy_from_slice(&data);
                }
                _ => {
                    let (status, read) = io.run(&mut world, OperationKind::Read, at, &[]);
                    prop_assert_eq!(status, Status::SUCCESS);
                    prop_assert!(read == model[range]);
                }
            }
        }
        prop_assert!(world.blocks[&(0, NAMESPACE)] == model);
    }
}
