//! A host against targets that send anything.

use crate::world::nqn;
use longhaul_nvme::host::{Admin, Goal, HostError, Identity, IoQueue, Operation, OperationKind};
use longhaul_nvme::{Completion, Remote, Status};
use longhaul_units::{Duration, Instant};
use proptest::collection::vec;
use proptest::prelude::*;

fn identity() -> Identity {
    Identity { host_id: [1; 16], host: nqn("host"), subsystem: nqn("open") }
}

fn completion(id: u16, status: Status, result: u64) -> [u8; 16] {
    Completion { result, sq_head: 0, queue: 0, id, status }.write()
}

fn id_of(command: &[u8; 64]) -> u16 {
    u16::from_le_bytes([command[2], command[3]])
}

#[test]
fn responses_to_nothing_are_faults() {
    let mut queue: IoQueue<u8> = IoQueue::new(1, 4, 0);
    let connect = queue.connect(&identity(), 1, |_| Remote::default()).unwrap();
    let read =
        Operation { kind: OperationKind::Read, namespace: 1, block: 0, blocks: 1, bytes: 512 };
    assert_eq!(queue.submit(&read, 9, |_| Remote::default()), Err(9), "not connected");
    let id = id_of(&connect.command);
    assert_eq!(queue.completed(&[0; 15]), Err(HostError::Length(15)));
    let unknown = completion(id ^ 1, Status::SUCCESS, 0);
    assert_eq!(queue.completed(&unknown), Err(HostError::UnknownCommand(id ^ 1)));
    assert_eq!(queue.completed(&completion(id, Status::SUCCESS, 0)), Ok(None));
    assert!(queue.is_ready());
    let second = queue.completed(&completion(id, Status::SUCCESS, 0));
    assert_eq!(second, Err(HostError::UnknownCommand(id)));
    for context in 0..4 {
        queue.submit(&read, context, |_| Remote::default()).unwrap();
    }
    assert_eq!(queue.next_slot(), None);
    assert_eq!(queue.submit(&read, 9, |_| Remote::default()), Err(9));
}

#[test]
fn a_silent_controller_is_given_up() {
    let limit = Duration::from_ms(1000);
    let mut admin = Admin::new(identity(), Goal::Queues(1), limit);
    let now = Instant::ZERO + limit;
    assert!(admin.poll_command(now, |_| Remote::default()).unwrap().is_some());
    assert_eq!(admin.poll_timeout(), Some(now + limit));
    let late = admin.poll_command(now + limit, |_| Remote::default());
    assert_eq!(late, Err(HostError::Silent("Connect")));
}

proptest! {
    #[test]
    fn any_responses_and_data_end_a_bring_up(
        answers in vec((any::<u64>(), 0..4_u8, vec(any::<u8>(), 4096)), 1..40),
        discovery in any::<bool>(),
    ) {
        let goal = if discovery { Goal::Discovery } else { Goal::Queues(3) };
        let mut admin = Admin::new(identity(), goal, Duration::ZERO);
        let mut now = Instant::ZERO;
        for (result, kind, mut data) in answers {
            now += Duration::from_ms(20);
            let Ok(Some(sent)) = admin.poll_command(now, |_| Remote::default()) else { break };
            // Mostly plausible, so that later phases are reached.
            match kind {
                0 => {}
                1 => data[1792..1804].copy_from_slice(&[4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]),
                _ => data.iter_mut().skip(8).for_each(|byte| *byte = 0),
            }
            let result = if kind == 0 { result } else { 1 | result << 32 };
            let answer = completion(id_of(&sent.command), Status::SUCCESS, result);
            let copy = |_: u16, len: usize| data[..len].to_vec();
            if admin.completed(now, &answer, copy).is_err() {
                break;
            }
        }
    }
}
