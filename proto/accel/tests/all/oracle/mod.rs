//! What docs/semantics.md says of a crash, held against a run of a small scenario.

use crate::host::{LOCAL, REMOTE};
use crate::row::{Boxed, Crash, MTU, Op, RowOf, SLOT};
use longhaul_accel::{LAN, Mode, Role, WAN};
use longhaul_rnic::Status;
use longhaul_units::Duration;

/// A box that is away for longer than this never comes back within a run.
pub const FOREVER: Duration = Duration::from_ms(1_000_000);

/// What is posted, each batch once the one before is completed and delivered, or has been given
/// time for it. The first shows boxes the flow that have missed the connection manager's messages.
/// The last two have no crashes: by the first of them the boxes find out what was lost, and by the
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

/// How the messages of one run ended.
pub struct Ending {
    /// Completions of the requester, in order.
    pub statuses: Vec<Status>,
    /// Messages whose last byte the responder has written, in order, READs among them as soon as
    /// nothing before them is missing.
    pub delivered: usize,
    /// Events of each box before the last two batches.
    pub events: [u64; 2],
}

/// What goes wrong besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ill {
    /// A request is lost on the long path.
    Path,
    /// An ACK is lost on the long path.
    PathBack,
    /// A request is lost on the responder's LAN.
    Lan,
    /// The responder has no receive for a SEND for a while.
    NotReady,
}

/// The SEND of two packets, which the ills befall.
const SEND: usize = 4;
/// Frames to the responder before it.
const FRAMES_BEFORE: u64 = 6;

/// Runs the scenario in `row`, in which nothing has happened.
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
        // Receives are taken in their order.
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

/// What the responder wrote is what was sent, in order, each packet once, with nothing behind a
/// gap. Returns how many messages it has.
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

/// What docs/semantics.md says of a mode, of a crash of a box, or of none.
pub fn check(mode: Mode, crashes: Option<(Role, Crash)>, ending: &Ending) {
    let role = crashes.map(|(role, _)| role);
    let Ending { statuses, delivered, .. } = ending;
    let completed = statuses.iter().take_while(|status| **status == Status::Success).count();
    assert!(
        statuses[completed..].iter().all(|status| *status != Status::Success),
        "nothing succeeds behind a failure: {statuses:?}"
    );
    let may_lose = match (mode, role) {
        (Mode::Early, Some(_)) | (Mode::Far, Some(Role::Far)) => true,
        (Mode::Tail | Mode::Off, _) | (Mode::Far, _) | (_, None) => false,
    };
    if completed > *delivered {
        assert!(may_lose, "{completed} messages completed, {delivered} are there: {statuses:?}");
        assert!(
            completed < statuses.len(),
            "{completed} completed, {delivered} delivered, and nobody is told"
        );
    }
}

/// Besides: nothing fails where nothing was lost that the requester's NIC cannot send again, and
/// its retries outlast all.
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
