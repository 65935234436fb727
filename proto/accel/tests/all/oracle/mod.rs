//! Checks runs of a small scenario against docs/semantics.md on crashes.

use crate::host::{LOCAL, REMOTE};
use crate::row::{Boxed, Crash, MTU, Op, RowOf, SLOT};
use longhaul_accel::promise::Lost;
use longhaul_accel::{LAN, Mode, Role, WAN};
use longhaul_rnic::Status;
use longhaul_units::Duration;

/// A box that is down for longer than this does not return within a run.
pub const FOREVER: Duration = Duration::from_ms(1_000_000);

/// Batches of messages; each is posted once the previous one is completed and delivered, or after a
/// timeout. The first batch shows the flow to boxes that missed the connection manager's messages.
/// The last two have no crashes: during the first of them the boxes detect the loss, during the
/// second the requester.
const BATCHES: [&[Op]; 5] = [
    &[Op::Write(100), Op::Send(64), Op::Write(200)],
    &[
        Op::Write(3000),
        Op::Send(1500),
        Op::Write(100),
        Op::Read(2500),
        Op::Send(64),
        Op::Write(2048),
    ],
    &[Op::Send(1500), Op::Write(1024)],
    &[Op::Write(10)],
    &[Op::Write(10)],
];

fn all() -> impl Iterator<Item = Op> {
    BATCHES.into_iter().flatten().copied()
}

fn op(slot: usize) -> Op {
    all().nth(slot).expect("a message")
}

/// Result of one run.
pub struct Ending {
    /// Completion statuses of the requester, in order.
    pub statuses: Vec<Status>,
    /// Messages whose last byte the responder has written, in order; a READ counts as soon as
    /// nothing before it is missing.
    pub delivered: usize,
    /// Events of each box before the last two batches.
    pub events: [u64; 2],
}

/// An additional fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ill {
    /// A request is lost on the long path.
    Path,
    /// An ACK is lost on the long path.
    PathBack,
    /// A request is lost on the responder's LAN.
    Lan,
    /// For a while the responder has no receive for a SEND.
    NotReady,
}

/// The SEND of two packets that the faults affect.
const SEND: usize = 4;
/// Frames to the responder before that SEND.
const FRAMES_BEFORE: u64 = 6;

/// Runs the scenario in `row`, which must be unused.
pub fn run<B: Boxed>(row: &mut RowOf<B>, ill: Ill, crashes: Option<(Role, Crash)>) -> Ending {
    match ill {
        Ill::Path => row.far().lost.push((LAN, FRAMES_BEFORE + 1)),
        Ill::PathBack => row.near().lost.push((WAN, 5)),
        Ill::Lan => row.far().lost_behind.push((WAN, FRAMES_BEFORE + 1)),
        Ill::NotReady => {}
    }
    if let Some((role, crash)) = crashes {
        row.node(role).crash = Some(crash);
    }
    let mut statuses = Vec::new();
    let mut events = [0; 2];
    for (number, batch) in BATCHES.into_iter().enumerate() {
        let from = statuses.len();
        if number + 2 == BATCHES.len() {
            events = [row.near().events, row.far().events];
        }
        let comes_late = |slot| ill == Ill::NotReady && slot == SEND;
        // Receives are consumed in order.
        let is_late = (from..from + batch.len()).any(comes_late);
        (0..batch.len()).for_each(|i| row.post(from + i, batch[i], !is_late));
        if is_late {
            let not_ready = row.now + Duration::from_ms(8);
            row.run_until(not_ready);
            let sends = (from..from + batch.len()).filter(|slot| matches!(op(*slot), Op::Send(_)));
            sends.for_each(|slot| row.post_receive(slot));
        }
        let end = row.now + Duration::from_ms(10_000);
        loop {
            for completion in row.completions(LOCAL) {
                assert_eq!(completion.wr_id, statuses.len() as u64, "each once, in order");
                statuses.push(completion.status);
            }
            let is_done = statuses.len() == from + batch.len() && !row.is_owed_anything();
            if is_done || !row.step(end) {
                break;
            }
        }
        assert_eq!(
            statuses.len(),
            from + batch.len(),
            "hangs: {:?}",
            row.near().node.serving().flows().collect::<Vec<_>>()
        );
        assert!(!row.is_owed_anything(), "a box neither delivers nor gives up");
        row.run_until(row.now + Duration::from_ms(30));
    }
    let received = row.completions(REMOTE).into_iter().filter(|c| c.status == Status::Success);
    let received: Vec<usize> = received.map(|c| c.wr_id as usize).collect();
    let delivered = check_delivered(row, &received);
    for (slot, status) in statuses.iter().enumerate() {
        if op(slot).is_read() && *status == Status::Success {
            let [local, remote] = [LOCAL, REMOTE].map(|host| row.bytes(host, slot, op(slot).len()));
            assert!(local == remote, "the READ has other bytes");
        }
    }
    Ending { statuses, delivered, events }
}

/// Checks that the responder wrote the bytes that were sent, in order, each packet once, with
/// nothing behind a gap. Returns the number of its messages.
fn check_delivered<B: Boxed>(row: &mut RowOf<B>, received: &[usize]) -> usize {
    let chunks = |slot: usize| {
        let len = if op(slot).is_read() { 0 } else { op(slot).len() };
        (0..len).step_by(MTU).map(move |at| (slot * SLOT + at, MTU.min(len - at)))
    };
    let slots = all().count();
    let all: Vec<(usize, usize)> = (0..slots).flat_map(chunks).collect();
    let writes = row.host(REMOTE).memory().writes.clone();
    assert!(all.starts_with(&writes), "a gap, a repetition or another order: {writes:?}");
    for &(at, len) in &writes {
        let [local, remote] =
            [LOCAL, REMOTE].map(|host| row.host(host).memory().bytes[at..at + len].to_vec());
        assert!(local == remote, "other bytes at {at}");
    }
    let mut left = writes.len();
    let is_there = |slot: &usize| {
        let needed = chunks(*slot).count();
        let there = needed <= left;
        left -= needed.min(left);
        there
    };
    let delivered = (0..slots).take_while(is_there).count();
    let sends: Vec<usize> =
        (0..delivered).filter(|slot| matches!(op(*slot), Op::Send(_))).collect();
    assert_eq!(received, sends, "each SEND is received once, in order");
    delivered
}

/// Checks a run against docs/semantics.md, for a mode and a crash of one box, or none.
pub fn check(mode: Mode, crashes: Option<(Role, Crash)>, ending: &Ending) {
    let role = crashes.map(|(role, _)| role);
    let Ending { statuses, delivered, .. } = ending;
    let completed = statuses.iter().take_while(|status| **status == Status::Success).count();
    assert!(
        statuses[completed..].iter().all(|status| *status != Status::Success),
        "nothing succeeds behind a failure: {statuses:?}"
    );
    let lost = Lost { near: role == Some(Role::Near), far: role == Some(Role::Far) };
    if completed > *delivered {
        assert!(
            mode.may_lose(lost),
            "{completed} messages completed, {delivered} are there: {statuses:?}"
        );
        assert!(
            completed < statuses.len(),
            "{completed} completed, {delivered} delivered, and nobody is told"
        );
    }
}

/// Also checks that nothing fails unless a packet was lost that the requester's NIC cannot
/// retransmit. Its retries outlast every absence.
pub fn check_going_on(mode: Mode, crashes: Option<(Role, Crash)>, ending: &Ending) {
    let role = crashes.map(|(role, _)| role);
    let keeps_nothing =
        matches!((mode, role), (Mode::Off, _) | (Mode::Far, Some(Role::Near)) | (_, None));
    let is_back = crashes.is_none_or(|(_, crash)| crash.away < FOREVER);
    assert!(
        !keeps_nothing
            || !is_back
            || ending.statuses.iter().all(|status| *status == Status::Success),
        "nothing was lost that could not be sent again: {:?}",
        ending.statuses
    );
}
